-- 0002_clock: what is remembered of the server's clock, so that store time never goes back.
-- Sequences, since a transaction neither locks nor undoes them: how far store time is ahead of the clock, and the
-- moment it has reached, in milliseconds.
CREATE SEQUENCE {schema}.clock_ahead MINVALUE 0 START 0;
CREATE SEQUENCE {schema}.clock_reached MINVALUE 0 START 0;
