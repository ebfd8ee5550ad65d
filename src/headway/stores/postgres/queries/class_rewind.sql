-- class_rewind: a job was put before those that were taken already: whoever claims looks from the beginning.
-- params  class_id
UPDATE {schema}.class SET rewound = rewound + 1 WHERE class_id = :class_id;
