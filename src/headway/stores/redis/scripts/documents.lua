-- documents: small named values with a version, and the effects of a change of the rules.

local function version_of(stored) return stored and tonumber(string.match(stored, '^%d+')) or 0 end

-- read: args  kind, name ('' with 1 behind it: all).  returns  name, version and body behind a line break, ...
local function read(keys, args)
  begin(keys, args)
  local key, found = P .. 'doc:' .. args[2], {}
  if args[4] == '1' then
    local names = call('HKEYS', key)
    table.sort(names, before)
    for _, name in ipairs(names) do push(found, name, call('HGET', key, name)) end
  else
    local stored = call('HGET', key, args[3])
    if stored then push(found, args[3], stored) end
  end
  return found
end

local function clamp_rates(rules)  -- no rate has used up more starts than its new rule allows
  local rates = call('HGETALL', P .. 'rates')
  for i = 1, #rates, 2 do
    local rule = rules.limits[string.match(rates[i], '^[^=]*')]
    if not rule or not rule.interval then
      call('HDEL', P .. 'rates', rates[i])
    else
      local most = now * 1000 + rule.burst * rule.interval
      call('HSET', P .. 'rates', rates[i], num(math.min(tonumber(rates[i + 1]), most)))
    end
  end
end

local function adopt()  -- count all leases again, and open all blocked queues
  tx.rule_index = nil
  local rules, held = rule_index.now(), call('HGETALL', P .. 'lease')
  clamp_rates(rules)
  for i = 1, #held, 2 do
    for _, key in ipairs(lease.rest(held[i + 1]).held or {}) do call('SREM', P .. 'h:' .. key, held[i]) end
  end
  for i = 1, #held, 2 do
    local member, was, rec = held[i], held[i + 1], record.of(held[i])
    local tenant, own = record.sharing(rec, record.flags(rec))
    local keys, rest = rule_index.keys(rec, tenant, own), lease.rest(was)
    limits.hold(member, keys)
    rest.held = keys.held
    call('HSET', P .. 'lease', member, lease.with_terms(was, rest))
  end
  limits.flush()
  for number = 1, class.all() do
    blocked_queue.open(number, call('HKEYS', P .. 'parks:' .. num(number)))
  end
  wake_all()
end

-- write: write or remove a document. A policy is announced to every worker.
-- args     kind, name, body, 1 to write or 0 to remove, version it must have ('' for any), and of a part of the rules:
--          the version of all rules it was compiled for, the rules as a whole (JSON), 1 if they may let more start,
--          their new version: a random text, so that servers never take other rules for those they remember
-- returns  the new version; 0 if the document's version was another; -1 if the rules' was
local function write(keys, args)
  begin(keys, args)
  local key, name = P .. 'doc:' .. args[2], args[3]
  local version = version_of(call('HGET', key, name))
  if args[6] ~= '' and tonumber(args[6]) ~= version then return 0 end
  if args[7] and (call('HGET', P .. 'meta', 'rules') or '0') ~= args[7] then return -1 end
  if args[5] == '1' then
    call('HSET', key, name, num(version + 1) .. '\n' .. args[4])
  else
    call('HDEL', key, name)
  end
  if args[2] == 'policy' then
    for _, id in ipairs(call('SMEMBERS', P .. 'workers')) do notify(id .. '.keeper') end
  end
  if args[7] then
    call('HSET', P .. 'meta', 'book', args[8])
    call('HSET', P .. 'meta', 'rules', args[10])
    if args[9] == '1' then adopt() end
  end
  return version + 1
end

-- rules: returns  their version, then name, version and body of each part
local function rules_now(keys, args)
  begin(keys, args)
  local found = {call('HGET', P .. 'meta', 'rules') or '0'}
  local names = call('HKEYS', P .. 'doc:rules')
  table.sort(names, before)
  for _, name in ipairs(names) do push(found, name, call('HGET', P .. 'doc:rules', name)) end
  return found
end
