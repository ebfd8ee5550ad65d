-- make_fair: let tenants share a class from now on.
-- params  class_id, number
SELECT {schema}.make_fair_{version}(:class_id, :number);
