-- is_list: whether a text is a JSON list.
CREATE OR REPLACE FUNCTION {schema}.is_list_{version}(value text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN value IS NULL OR json_typeof(value::json) = 'array';
EXCEPTION WHEN data_exception THEN
  RETURN false;
END $$;
