-- 0001_first: jobs, where each of them is, workers, documents, totals.
-- holds  a job is in exactly one of ready, delayed, lease, outcome; transient jobs are in transient alone

CREATE TABLE format (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE sequence (last INTEGER NOT NULL);
INSERT INTO sequence VALUES (0);
-- rules grows whenever a document of the kind 'rules' is written.
CREATE TABLE namespace (namespace_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, rules INTEGER NOT NULL DEFAULT 0,
                        witnessed_at INTEGER NOT NULL DEFAULT 0);

CREATE TABLE class (
  class_id INTEGER PRIMARY KEY,
  namespace_id INTEGER NOT NULL,
  lane TEXT NOT NULL,
  rung TEXT NOT NULL,          -- '' for none
  needs TEXT NOT NULL,         -- JSON, sorted
  persist INTEGER NOT NULL,
  fair INTEGER NOT NULL DEFAULT 0,   -- whether tenants share it; then order keys are virtual time and
  clock INTEGER NOT NULL DEFAULT 0,  -- this is the highest that was ever taken
  UNIQUE (namespace_id, lane, rung, needs, persist)
);

-- What never changes about a job, and its place: class_id with park and order_key, or with due_at, lead to its row
-- in ready or delayed.
CREATE TABLE job (
  seq INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL,
  namespace_id INTEGER NOT NULL,
  class_id INTEGER NOT NULL,
  park TEXT NOT NULL DEFAULT '',
  order_key INTEGER,
  due_at INTEGER,
  task TEXT NOT NULL,
  tenant TEXT,
  trace_id TEXT,
  submitted_at INTEGER NOT NULL,
  expires_at INTEGER,
  max_retries INTEGER NOT NULL,
  timeout_ms INTEGER NOT NULL,
  retry TEXT,                  -- JSON; none: the policy's
  idempotency_key TEXT,
  unique_key TEXT,
  limits TEXT,                 -- JSON: the counters that hang on its arguments
  payload BLOB NOT NULL,
  UNIQUE (job_id, namespace_id)
);

-- timeout_ms is set once it has grown; token is that of the last lease. park is the key of the limit that a job waits
-- for, '' if nothing of its own holds it back; tenant is set where tenants share, '' for jobs that have none.
CREATE TABLE ready (
  class_id INTEGER NOT NULL,
  park TEXT NOT NULL,
  order_key INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  eligible_at INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes INTEGER NOT NULL,
  timeout_ms INTEGER,
  token BLOB,
  error TEXT,
  reason TEXT,
  tenant TEXT,
  parked_at INTEGER,
  PRIMARY KEY (class_id, park, order_key, seq)
) WITHOUT ROWID;
CREATE INDEX ready_tenant ON ready (class_id, tenant, order_key) WHERE tenant IS NOT NULL;
CREATE INDEX ready_age ON ready (class_id, eligible_at) WHERE tenant IS NOT NULL AND park = '';

-- The parks that are not empty. An open one may have room and is served by its first job's place; a shut one opens at
-- open_at, or when somebody gives its key back.
CREATE TABLE park (
  namespace_id INTEGER NOT NULL,
  park TEXT NOT NULL,
  class_id INTEGER NOT NULL,
  open INTEGER NOT NULL,
  open_at INTEGER,
  head_key INTEGER NOT NULL,
  head_seq INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, park, class_id)
) WITHOUT ROWID;
CREATE INDEX park_open ON park (class_id, head_key, head_seq) WHERE open = 1;
CREATE INDEX park_open_at ON park (namespace_id, open_at) WHERE open_at IS NOT NULL;

-- How far ahead the starts of a rate were given away.
CREATE TABLE rate (
  namespace_id INTEGER NOT NULL,
  rate_key TEXT NOT NULL,
  reached_us INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, rate_key)
) WITHOUT ROWID;

CREATE TABLE delayed (
  namespace_id INTEGER NOT NULL,
  due_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  class_id INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes INTEGER NOT NULL,
  timeout_ms INTEGER,
  token BLOB,
  error TEXT,
  reason TEXT,
  PRIMARY KEY (namespace_id, due_at, seq)
) WITHOUT ROWID;

-- No index by worker: leases are few, as many as there are busy slots.
CREATE TABLE lease (
  seq INTEGER PRIMARY KEY,
  class_id INTEGER NOT NULL,
  worker_id TEXT NOT NULL,
  token BLOB NOT NULL,
  started_at INTEGER NOT NULL,
  eligible_at INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes INTEGER NOT NULL,
  timeout_ms INTEGER NOT NULL,
  unique_key TEXT,
  cancel_at INTEGER,
  progress REAL,
  note TEXT,
  order_key INTEGER NOT NULL,
  tenant TEXT,                 -- as in ready
  held TEXT,                   -- JSON: the limits it counts against
  assigned TEXT,               -- the rung it was given
  parked_for TEXT,             -- what it had been put aside for, and how long
  parked_ms INTEGER
);
CREATE INDEX lease_tenant ON lease (class_id, tenant, order_key) WHERE tenant IS NOT NULL;

CREATE TABLE outcome (
  seq INTEGER PRIMARY KEY,
  state TEXT NOT NULL,
  finished_at INTEGER NOT NULL,
  worker_id TEXT,
  token BLOB,
  started_at INTEGER,
  eligible_at INTEGER,
  epoch INTEGER NOT NULL,
  attempts INTEGER NOT NULL,
  crashes INTEGER NOT NULL,
  timeout_ms INTEGER,
  cancel_at INTEGER,
  progress REAL,
  note TEXT,
  reason TEXT,
  error TEXT,
  result_error TEXT,
  result BLOB,
  parked_for TEXT,
  parked_ms INTEGER
);
-- Completed jobs are many and found in the order of their numbers; only the others need an index.
CREATE INDEX outcome_bad ON outcome (state, finished_at) WHERE state <> 'completed';

-- From one moment to another a class waited for one reason.
CREATE TABLE stretch (
  class_id INTEGER NOT NULL,
  from_at INTEGER NOT NULL,
  until_at INTEGER NOT NULL,
  reason TEXT NOT NULL,
  PRIMARY KEY (class_id, from_at)
) WITHOUT ROWID;

CREATE TABLE attempt (
  seq INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  number INTEGER NOT NULL,
  worker_id TEXT,
  started_at INTEGER NOT NULL,
  ended_at INTEGER NOT NULL,
  reason TEXT NOT NULL,
  error TEXT,
  PRIMARY KEY (seq, epoch)
) WITHOUT ROWID;

CREATE TABLE transient (
  class_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  job_id TEXT NOT NULL,
  task TEXT NOT NULL,
  tenant TEXT,
  trace_id TEXT,
  timeout_ms INTEGER NOT NULL,
  payload BLOB NOT NULL,
  PRIMARY KEY (class_id, seq)
) WITHOUT ROWID;

CREATE TABLE unique_key (
  namespace_id INTEGER NOT NULL,
  unique_key TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, unique_key)
) WITHOUT ROWID;

CREATE TABLE idempotency (
  namespace_id INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  idempotency_key TEXT NOT NULL,
  job_id TEXT NOT NULL,
  digest BLOB NOT NULL,
  until_at INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, tenant, idempotency_key)
) WITHOUT ROWID;
CREATE INDEX idempotency_until ON idempotency (until_at);

-- Each row is looked at once it is due, and goes unless its job is executing and may come back.
CREATE TABLE expiry (
  namespace_id INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, expires_at, seq)
) WITHOUT ROWID;

CREATE TABLE worker (
  worker_id TEXT PRIMARY KEY,
  namespace_id INTEGER NOT NULL,
  host TEXT NOT NULL,
  pid INTEGER NOT NULL,
  slots INTEGER NOT NULL,
  reserved INTEGER NOT NULL,
  offers TEXT NOT NULL,
  version TEXT NOT NULL,
  protocol INTEGER NOT NULL,
  state TEXT NOT NULL,
  started_at INTEGER NOT NULL,
  heartbeat_at INTEGER NOT NULL,
  lease_ends_at INTEGER NOT NULL,
  claim_id BLOB,
  waiting INTEGER NOT NULL DEFAULT 0,  -- the order in which they began to wait; 0: not waiting
  wait_lanes TEXT                      -- JSON: the lanes it waits for; none: any
) WITHOUT ROWID;

CREATE TABLE document (
  namespace_id INTEGER NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  version INTEGER NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (namespace_id, kind, name)
) WITHOUT ROWID;

CREATE TABLE tally (
  namespace_id INTEGER NOT NULL,
  minute INTEGER NOT NULL,     -- 0 holds all minutes that were folded together
  what TEXT NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (namespace_id, minute, what)
) WITHOUT ROWID;
