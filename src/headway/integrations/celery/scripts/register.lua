-- register: the functions, each under the name of the library and its own. All except count and push also run on a full
-- server, because they free memory in the end.
local function register(name, callback)
  redis.register_function{function_name = '@LIBRARY@_' .. name, callback = callback, flags = {'allow-oom'}}
end
redis.register_function('@LIBRARY@_count', count)
redis.register_function('@LIBRARY@_push', push)
register('choose', choose)
register('uncount', uncount)
register('by_hand', by_hand)
register('reset', reset)
register('runs', runs)
register('renew', renew)
register('leave', leave)
register('loads', loads)
register('figures', figures)
register('check', check)
register('waiting', waiting)
register('leases', leases)
register('held', held)
register('listed', listed)
register('unacked', unacked)
register('known', known)
register('adopt', adopt)
