-- 0001_first: jobs, where each of them is, workers, documents, totals.
-- holds  a job is in exactly one of ready, delayed, lease, outcome; transient jobs are in transient alone

CREATE TABLE {schema}.format (name text PRIMARY KEY, value int NOT NULL);
CREATE SEQUENCE {schema}.sequence;  -- orders all jobs
CREATE SEQUENCE {schema}.turn;      -- orders the workers that wait

-- rules grows whenever a document of the kind 'rules' is written; channel is where its wake-ups are sent.
CREATE TABLE {schema}.namespace (
  namespace_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name text COLLATE "C" NOT NULL UNIQUE,
  channel text NOT NULL,
  rules bigint NOT NULL DEFAULT 0,
  witnessed_at bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

CREATE TABLE {schema}.class (
  class_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  namespace_id int NOT NULL,
  lane text COLLATE "C" NOT NULL,
  rung text COLLATE "C" NOT NULL,     -- '' for none
  needs text[] COLLATE "C" NOT NULL,  -- sorted
  persist boolean NOT NULL,
  fair boolean NOT NULL DEFAULT false,  -- whether tenants share it; then order keys are virtual time and
  clock bigint NOT NULL DEFAULT 0,      -- this is the highest that was ever taken
  rewound int NOT NULL DEFAULT 0,       -- grows whenever a job is put before those that were taken already
  UNIQUE (namespace_id, lane, rung, needs, persist)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What never changes about a job, and its place: class_id with park and order_key, or with due_at, lead to its row
-- in ready or delayed. One that succeeds at its first attempt is written here once.
CREATE TABLE {schema}.job (
  seq bigint PRIMARY KEY,
  namespace_id int NOT NULL,
  class_id int NOT NULL,
  order_key bigint,
  due_at bigint,
  submitted_at bigint NOT NULL,
  expires_at bigint,
  timeout_ms bigint NOT NULL,
  max_retries int NOT NULL,
  job_id text COLLATE "C" NOT NULL,
  park text COLLATE "C" NOT NULL DEFAULT '',
  task text COLLATE "C" NOT NULL,
  tenant text COLLATE "C",
  trace_id text,
  retry text,                  -- JSON; none: the policy's
  idempotency_key text COLLATE "C",
  unique_key text COLLATE "C",
  limits text,                 -- JSON: the counters that hang on its arguments
  payload bytea NOT NULL,
  UNIQUE (job_id, namespace_id)
) WITH (fillfactor = 95);

-- timeout_ms is set once it has grown; token is that of the last lease. park is the key of the limit that a job waits
-- for, '' if nothing of its own holds it back; tenant is set where tenants share, '' for jobs that have none.
CREATE TABLE {schema}.ready (
  order_key bigint NOT NULL,
  seq bigint NOT NULL,
  eligible_at bigint NOT NULL,
  expires_at bigint,
  timeout_ms bigint,
  parked_at bigint,
  class_id int NOT NULL,
  epoch int NOT NULL DEFAULT 0,
  attempts int NOT NULL DEFAULT 0,
  crashes int NOT NULL DEFAULT 0,
  park text COLLATE "C" NOT NULL DEFAULT '',
  tenant text COLLATE "C",
  unique_key text COLLATE "C",
  token bytea,
  error text,
  reason text,
  PRIMARY KEY (class_id, park, order_key, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_analyze_scale_factor = 1);
CREATE INDEX ready_tenant ON {schema}.ready (class_id, tenant, order_key) WHERE tenant IS NOT NULL;
CREATE INDEX ready_age ON {schema}.ready (class_id, eligible_at) WHERE tenant IS NOT NULL AND park = '';

-- The parks that are not empty. An open one may have room and is served by its first job's place; a shut one opens at
-- open_at, or when somebody gives its key back.
CREATE TABLE {schema}.park (
  namespace_id int NOT NULL,
  park text COLLATE "C" NOT NULL,
  class_id int NOT NULL,
  open boolean NOT NULL,
  open_at bigint,
  head_key bigint NOT NULL,
  head_seq bigint NOT NULL,
  PRIMARY KEY (namespace_id, park, class_id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX park_open ON {schema}.park (class_id, head_key, head_seq) WHERE open;
CREATE INDEX park_open_at ON {schema}.park (namespace_id, open_at) WHERE open_at IS NOT NULL;

-- How far ahead the starts of a rate were given away.
CREATE TABLE {schema}.rate (
  namespace_id int NOT NULL,
  rate_key text COLLATE "C" NOT NULL,
  reached_us bigint NOT NULL,
  PRIMARY KEY (namespace_id, rate_key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.delayed (
  due_at bigint NOT NULL,
  seq bigint NOT NULL,
  timeout_ms bigint,
  namespace_id int NOT NULL,
  class_id int NOT NULL,
  epoch int NOT NULL DEFAULT 0,
  attempts int NOT NULL DEFAULT 0,
  crashes int NOT NULL DEFAULT 0,
  token bytea,
  error text,
  reason text,
  PRIMARY KEY (namespace_id, due_at, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- As many rows as there are busy slots, but for the dead ones: nothing that is asked often walks this table.
CREATE TABLE {schema}.lease (
  seq bigint PRIMARY KEY,
  order_key bigint NOT NULL,
  started_at bigint NOT NULL,
  eligible_at bigint NOT NULL,
  timeout_ms bigint,           -- as in ready
  cancel_at bigint,
  parked_ms bigint,            -- how long it had been put aside,
  progress double precision,
  class_id int NOT NULL,
  epoch int NOT NULL,
  attempts int NOT NULL,
  crashes int NOT NULL,
  token bytea NOT NULL,
  worker_id text COLLATE "C" NOT NULL,
  tenant text COLLATE "C",     -- as in ready
  unique_key text COLLATE "C",
  note text,
  held text,                   -- JSON: the limits it counts against
  assigned text,               -- the rung it was given
  parked_for text              -- and what for
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);
CREATE INDEX lease_tenant ON {schema}.lease (class_id, tenant, order_key) WHERE tenant IS NOT NULL;

-- Completed jobs are many and lie by the day they ended on: once all of them are forgotten, which is to say that their
-- rows in job are gone, the day is dropped whole. The others may be kept for longer, or be retried, and are apart.
CREATE TABLE {schema}.outcome (
  seq bigint NOT NULL,
  finished_at bigint NOT NULL,
  started_at bigint,
  eligible_at bigint,
  timeout_ms bigint,
  cancel_at bigint,
  parked_ms bigint,
  progress double precision,
  epoch int NOT NULL,
  attempts int NOT NULL,
  crashes int NOT NULL,
  state text COLLATE "C" NOT NULL,
  worker_id text COLLATE "C",
  token bytea,
  note text,
  reason text,
  error text,
  result_error text,
  result bytea,
  parked_for text
) PARTITION BY LIST (state);
CREATE TABLE {schema}.outcome_bad PARTITION OF {schema}.outcome DEFAULT;
CREATE INDEX outcome_bad_state ON {schema}.outcome_bad (state, finished_at);
CREATE TABLE {schema}.outcome_completed PARTITION OF {schema}.outcome FOR VALUES IN ('completed')
  PARTITION BY RANGE (finished_at);
CREATE TABLE {schema}.outcome_any_day PARTITION OF {schema}.outcome_completed DEFAULT;
CREATE INDEX outcome_seq ON {schema}.outcome (seq);

-- From one moment to another a class waited for one reason.
CREATE TABLE {schema}.stretch (
  class_id int NOT NULL,
  from_at bigint NOT NULL,
  until_at bigint NOT NULL,
  reason text NOT NULL,
  PRIMARY KEY (class_id, from_at)
);

CREATE TABLE {schema}.attempt (
  seq bigint NOT NULL,
  started_at bigint NOT NULL,
  ended_at bigint NOT NULL,
  epoch int NOT NULL,
  number int NOT NULL,
  worker_id text,
  reason text NOT NULL,
  error text,
  PRIMARY KEY (seq, epoch)
);

CREATE TABLE {schema}.transient (
  seq bigint NOT NULL,
  timeout_ms bigint NOT NULL,
  class_id int NOT NULL,
  job_id text NOT NULL,
  task text COLLATE "C" NOT NULL,
  tenant text,
  trace_id text,
  payload bytea NOT NULL,
  PRIMARY KEY (class_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {schema}.unique_key (
  namespace_id int NOT NULL,
  unique_key text COLLATE "C" NOT NULL,
  job_id text NOT NULL,
  PRIMARY KEY (namespace_id, unique_key)
);

CREATE TABLE {schema}.idempotency (
  namespace_id int NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  idempotency_key text COLLATE "C" NOT NULL,
  until_at bigint NOT NULL,
  job_id text NOT NULL,
  digest bytea NOT NULL,
  PRIMARY KEY (namespace_id, tenant, idempotency_key)
);
CREATE INDEX idempotency_until ON {schema}.idempotency (until_at);

-- Each row is looked at once it is due, and goes unless its job is executing and may come back.
CREATE TABLE {schema}.expiry (
  namespace_id int NOT NULL,
  expires_at bigint NOT NULL,
  seq bigint NOT NULL,
  PRIMARY KEY (namespace_id, expires_at, seq)
);

-- running is how many leases a worker holds: it changes in the transaction that changes them, under the row's lock,
-- since to count them would mean to walk over the dead rows of those that have ended.
CREATE TABLE {schema}.worker (
  worker_id text COLLATE "C" PRIMARY KEY,
  namespace_id int NOT NULL,
  host text NOT NULL,
  pid int NOT NULL,
  slots int NOT NULL,
  reserved int NOT NULL,
  offers text[] COLLATE "C" NOT NULL,
  version text NOT NULL,
  protocol int NOT NULL,
  state text NOT NULL,
  started_at bigint NOT NULL,
  heartbeat_at bigint NOT NULL,
  lease_ends_at bigint NOT NULL,
  running int NOT NULL DEFAULT 0,
  claim_id bytea,
  waiting bigint,              -- the order in which they began to wait; none: not waiting
  wait_lanes text[] COLLATE "C"  -- the lanes it waits for; none: any
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX worker_waiting ON {schema}.worker (namespace_id, waiting) WHERE waiting IS NOT NULL;

-- Who wants to hear of every job that changes; a row that was not renewed in time counts for nothing.
CREATE TABLE {schema}.watcher (
  namespace_id int NOT NULL,
  name text COLLATE "C" NOT NULL,
  until_at bigint NOT NULL,
  PRIMARY KEY (namespace_id, name)
);

CREATE TABLE {schema}.document (
  namespace_id int NOT NULL,
  kind text COLLATE "C" NOT NULL,
  name text COLLATE "C" NOT NULL,
  version int NOT NULL,
  body bytea NOT NULL,
  PRIMARY KEY (namespace_id, kind, name)
);

-- Several rows a minute, so that those who count do not wait for each other.
CREATE TABLE {schema}.tally (
  namespace_id int NOT NULL,
  minute bigint NOT NULL,      -- 0 holds all minutes that were folded together
  shard int NOT NULL,
  what text COLLATE "C" NOT NULL,
  count bigint NOT NULL,
  PRIMARY KEY (namespace_id, minute, what, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
