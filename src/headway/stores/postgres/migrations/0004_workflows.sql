-- 0004_workflows: edges between jobs, batches that count jobs, and the steps that jobs keep.
-- holds  a held job is in delayed, due at HELD_AT of core/workflow.py; jobs and batches share one sequence of numbers

-- The mark of a job: it is a member of a batch, or an edge comes from it. Both are empty for other jobs. ready and lease
-- repeat them, so that the claim and the end of a plain job read nothing else.
ALTER TABLE {schema}.job ADD COLUMN batch_seq bigint, ADD COLUMN awaited boolean;
ALTER TABLE {schema}.ready ADD COLUMN batch_seq bigint, ADD COLUMN awaited boolean;
ALTER TABLE {schema}.lease ADD COLUMN batch_seq bigint, ADD COLUMN awaited boolean;
CREATE INDEX job_batch ON {schema}.job (batch_seq, seq) WHERE batch_seq IS NOT NULL;
CREATE INDEX lease_batch ON {schema}.lease (batch_seq) WHERE batch_seq IS NOT NULL;

-- live counts the members that have not ended, children those of them that are batches, and held those that are held.
-- A batch has ended, and finished_at is set, once it is not open and live is 0.
CREATE TABLE {schema}.batch (
  seq bigint PRIMARY KEY,
  namespace_id int NOT NULL,
  batch_id text COLLATE "C" NOT NULL,
  name text NOT NULL,
  key text COLLATE "C",
  tenant text COLLATE "C",
  parent_seq bigint,
  open boolean NOT NULL,
  total int NOT NULL DEFAULT 0,
  live int NOT NULL DEFAULT 0,
  children int NOT NULL DEFAULT 0,
  held int NOT NULL DEFAULT 0,
  completed int NOT NULL DEFAULT 0,
  failed int NOT NULL DEFAULT 0,
  cancelled int NOT NULL DEFAULT 0,
  failing boolean NOT NULL DEFAULT false,
  round int NOT NULL DEFAULT 1,
  created_at bigint NOT NULL,
  cancel_at bigint,
  finished_at bigint,
  UNIQUE (batch_id, namespace_id)
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX batch_key ON {schema}.batch (namespace_id, key, coalesce(tenant, '')) WHERE key IS NOT NULL;
CREATE INDEX batch_parent ON {schema}.batch (parent_seq) WHERE parent_seq IS NOT NULL;

-- source is the id of the job or batch, since that may be pruned once its dependants have ended.
CREATE TABLE {schema}.edge (
  source_seq bigint NOT NULL,
  dependant_seq bigint NOT NULL,
  place int NOT NULL,          -- the order in which the edges of a dependant were given
  satisfied boolean NOT NULL,
  again boolean NOT NULL DEFAULT false,  -- a new round began while the callback ran: it is held again when it has ended
  rule text COLLATE "C" NOT NULL,
  source text COLLATE "C" NOT NULL,
  PRIMARY KEY (source_seq, dependant_seq)
) WITH (fillfactor = 50);
CREATE INDEX edge_dependant ON {schema}.edge (dependant_seq, place);
CREATE INDEX edge_again ON {schema}.edge (dependant_seq) WHERE again;

-- One row for each job with edges, for as long as the job. pending counts its unsatisfied edges.
CREATE TABLE {schema}.dependant (
  seq bigint PRIMARY KEY,
  pending int NOT NULL,
  due_at bigint NOT NULL,      -- the end of its own delay, which applies once it is released
  back boolean NOT NULL        -- whether it then goes to the back of its queue
) WITH (fillfactor = 50);

-- What earlier verbs have left: the edges of a source behind the dependant that was reached, or, where members is set,
-- the members of a cancelled batch behind the one that was reached. A source may be here twice: a unique index would make
-- a verb wait for a caller's transaction that has put the same source here.
CREATE TABLE {schema}.unsettled (
  place bigint GENERATED ALWAYS AS IDENTITY,
  namespace_id int NOT NULL,
  source_seq bigint NOT NULL,
  members boolean NOT NULL,
  reached bigint NOT NULL,
  PRIMARY KEY (namespace_id, place)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- bytes counts the values of this step and of those before it.
CREATE TABLE {schema}.step (
  seq bigint NOT NULL,
  number int NOT NULL,
  key text COLLATE "C" NOT NULL,
  value bytea NOT NULL,
  bytes bigint NOT NULL,
  PRIMARY KEY (seq, number),
  UNIQUE (seq, key)
);
