-- snapshot: picture what waits.
-- params  namespace_id, now_at, bound, f_class, f_floor, f_rewound
SELECT {schema}.snapshot_{version}(:namespace_id, :now_at, :bound, :f_class, :f_floor, :f_rewound);
