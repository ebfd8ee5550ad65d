-- begin: begin a transaction on a namespace: with others, or alone where what is checked spans jobs of several workers.
-- gives   the moment, the version of the rules, whether any job waits for a limit of its own, and whether earlier verbs
--         have left edges to settle
-- holds   no process holds the namespace alone while another is in it; sessions of a machine that freezes hold it for
--         10 s in all, because those that wait give up before the server ends the one that holds it
CREATE OR REPLACE FUNCTION {schema}.begin_{version}(ns int, at bigint, alone boolean, OUT now_at bigint,
                                                    OUT rules bigint, OUT parked boolean, OUT unsettled boolean)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('idle_in_transaction_session_timeout', '10s', true), set_config('lock_timeout', '5s', true);
  IF alone THEN
    PERFORM pg_advisory_xact_lock({lock}, ns);
  ELSE
    PERFORM pg_advisory_xact_lock_shared({lock}, ns);
  END IF;
  now_at := {schema}.now_ms_{version}(at);
  SELECT n.rules, EXISTS (SELECT FROM {schema}.park p WHERE p.namespace_id = ns),
         EXISTS (SELECT FROM {schema}.unsettled u WHERE u.namespace_id = ns) INTO rules, parked, unsettled
    FROM {schema}.namespace n WHERE n.namespace_id = ns;
END $$;
