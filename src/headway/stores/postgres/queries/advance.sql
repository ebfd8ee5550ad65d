-- advance: take the next numbers of the one sequence that orders everything.
-- params  count
-- gives   the numbers, in order
SELECT nextval('{schema}.sequence') FROM generate_series(1, :count::int);
