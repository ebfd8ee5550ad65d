-- format_read: which versions a schema is of.
-- params  none
SELECT name, value FROM {schema}.format;
