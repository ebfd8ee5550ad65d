-- witness_turn: take the turn to sample what classes wait for, if nobody did a moment ago.
-- params  now_at, namespace_id, before_at
UPDATE {schema}.namespace SET witnessed_at = :now_at WHERE namespace_id = :namespace_id AND witnessed_at <= :before_at RETURNING 1;
