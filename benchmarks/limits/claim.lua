-- claim: take a batch from the front of a line and lease it; drop the batch before.
-- keys   1 line (zset)   2 leases (zset)   3 bodies (hash)
-- args   1 how many   2 end of the leases   3.. ids that are done
local done = {}
for i = 3, #ARGV do
  done[#done + 1] = ARGV[i]
end
if #done > 0 then
  redis.call("ZREM", KEYS[2], unpack(done))
  redis.call("HDEL", KEYS[3], unpack(done))
end
local popped = redis.call("ZPOPMIN", KEYS[1], ARGV[1])
local ids, leases = {}, {}
for i = 1, #popped, 2 do
  ids[#ids + 1] = popped[i]
  leases[#leases + 1] = ARGV[2]
  leases[#leases + 1] = popped[i]
end
if #ids == 0 then
  return { ids, {} }
end
redis.call("ZADD", KEYS[2], unpack(leases))
return { ids, redis.call("HMGET", KEYS[3], unpack(ids)) }
