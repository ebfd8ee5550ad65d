-- enter: begin a transaction on a namespace, with others or alone.
-- params  namespace_id, now_at, alone
SELECT now_at, rules, parked FROM {schema}.enter_{version}(:namespace_id, :now_at, :alone);
