-- caps: limits, rates, the ladder and the pool's reserve, checked in the step that claims.
--
-- The rules in force are in meta as JSON, compiled by the client that wrote them last: see ``book.py``. A server reads
-- them once a version.
local books = {}
local book = {}

function book.now()
  if tx.book then return tx.book end
  local version = call('HGET', P .. 'meta', 'rules') or '0'
  local known = books[P]
  if not known or known.version ~= version then
    local body = call('HGET', P .. 'meta', 'book')
    known = body and cjson.decode(body) or cjson.decode('{}')
    known.version, known.of_task = version, {}
    known.limits, known.rungs, known.costs, known.weights =
      known.limits or {}, known.rungs or {}, known.costs or {}, known.weights or {}
    known.lanes, known.tasks, known.tenants = known.lanes or {}, known.tasks or {}, known.tenants or {}
    known.learned = next(known.costs) ~= nil
    known.binds = next(known.limits) ~= nil or next(known.tasks) ~= nil or next(known.tenants) ~= nil
    books[P] = known
  end
  tx.book = known
  return known
end

function book.shuts(lane)
  local rules = book.now()
  return rules.everything or rules.lanes[lane]
end

local function limits_of(rules, task)
  local found = rules.of_task[task]
  if not found then
    found = {}
    for name, rule in pairs(rules.limits) do
      local applies = not rule.param and not rule.tasks
      for _, pattern in ipairs(not rule.param and rule.tasks or {}) do
        applies = applies or string.match(task, pattern) ~= nil
      end
      if applies then push(found, {name = name, rule = rule}) end
    end
    rules.of_task[task] = found
  end
  return found
end

local function in_order(one, other)
  local a, b = one.rule.interval ~= nil, other.rule.interval ~= nil
  if a ~= b then return b end
  return before(one.key, other.key)
end

function book.keys(task, tenant, bound)  -- the counters a job needs room in: pauses first, then caps, then rates
  local rules, found, limited = book.now(), {}, {}
  if rules.tasks[task] then push(found, {key = '=paused:task:' .. task, rule = {most = 0}}) end
  if tenant and rules.tenants[tenant] then push(found, {key = '=paused:tenant:' .. tenant, rule = {most = 0}}) end
  for _, entry in ipairs(limits_of(rules, task)) do
    local key = entry.rule.counter
    push(limited, {key = entry.rule.by_tenant and key .. '=' .. (tenant or '') or entry.name, rule = entry.rule})
  end
  for _, key in ipairs(bound or {}) do
    local rule = rules.limits[string.match(key, '^[^=]*')]
    if rule then push(limited, {key = key, rule = rule}) end
  end
  table.sort(limited, in_order)
  for _, entry in ipairs(limited) do push(found, entry) end
  return found
end

function book.step(task, tenant)  -- how far apart two jobs of a task and tenant are in virtual time
  local rules = book.now()
  local cost = 1000000
  if rules.learned then
    cost = rules.costs[string.gsub(task, '=', '%%3D') .. '=' .. tenant] or rules.costs[task] or cost
  end
  return math.max(1, floor(cost / (rules.weights[tenant] or rules.default_weight or 1)))
end

local caps = {}

local function used(key)
  local n = tx.room[key]
  if not n then
    n = call('SCARD', P .. 'h:' .. key)
    tx.room[key] = n
  end
  return n
end

local function reached(key)
  local at = tx.reached[key]
  if at == nil then
    at = tonumber(call('HGET', P .. 'rates', key) or nil) or 0
    tx.reached[key] = at
  end
  return math.max(at, now * 1000)
end

function caps.conforms(key, rule)  -- the millisecond from which the next start conforms to a rate
  return floor((reached(key) - (rule.burst - 1) * rule.interval) / 1000)
end

function caps.full(keys)  -- the first key without room, and when it will have, if that is known
  for _, entry in ipairs(keys) do
    local rule = entry.rule
    if rule.most and used(entry.key) >= rule.most then return entry.key, nil end
    if rule.interval then
      local at = caps.conforms(entry.key, rule)
      if at > now then return entry.key, at end
    end
  end
  return nil
end

function caps.hold(member, keys)  -- count a lease; gives the keys it holds
  local held = {}
  for _, entry in ipairs(keys) do
    if entry.rule.most then
      local n = used(entry.key)
      call('SADD', P .. 'h:' .. entry.key, member)
      tx.room[entry.key] = n + 1
      push(held, entry.key)
    end
  end
  return held
end

function caps.start(keys)  -- take a start from each rate
  for _, entry in ipairs(keys) do
    if entry.rule.interval then
      local at = reached(entry.key) + entry.rule.interval
      tx.reached[entry.key] = at
      call('HSET', P .. 'rates', entry.key, num(at))
    end
  end
end

function caps.give_back(member, held)
  for _, key in ipairs(held) do
    call('SREM', P .. 'h:' .. key, member)
    tx.room[key] = nil
    parks.release(key)
  end
end

local function live_slots()
  local slots = 0
  for _, id in ipairs(call('SMEMBERS', P .. 'workers')) do
    local row = call('HMGET', P .. 'worker:' .. id, 'state', 'ends', 'slots')
    if row[1] == 'active' and tonumber(row[2]) > now then slots = slots + tonumber(row[3]) end
  end
  return slots
end

-- What runs: read from the leases when first asked, and kept up with the claims of this call.
function caps.floor()
  if not tx.floor then
    local floor_ = {slots = live_slots(), running = 0, counts = {}, elastic = {}, sessions = {}, lanes = {}}
    local held, shortest = call('HGETALL', P .. 'lease'), book.now().rungs[1]
    for i = 1, #held, 2 do
      local held_as = held[i + 1]
      local key, assigned = class.parts($lease.class(held_as)), lease.rest(held_as).assigned
      floor_.running = floor_.running + 1
      floor_.lanes[key.lane] = (floor_.lanes[key.lane] or 0) + 1
      if key.rung == 'interactive' then  -- counts at the shortest rung
        if shortest then floor_.counts[shortest.name] = (floor_.counts[shortest.name] or 0) + 1 end
        push(floor_.sessions, {member = held[i], rung = assigned or '', started = tonumber($lease.started(held_as))})
      elseif assigned and assigned ~= '' then
        floor_.counts[assigned] = (floor_.counts[assigned] or 0) + 1
        if key.rung == 'default' then
          push(floor_.elastic, {member = held[i], rung = assigned, started = tonumber($lease.started(held_as))})
        end
      end
    end
    table.sort(floor_.elastic, function(a, b) return a.member < b.member end)
    table.sort(floor_.sessions, function(a, b) return a.member < b.member end)
    tx.floor = floor_
  end
  return tx.floor
end

local function rung_index(rules, name)
  if name == 'default' and rules.rungs[1] then return 1 end
  for index, rung in ipairs(rules.rungs) do
    if rung.name == name then return index end
  end
  return nil
end

local function has_room(rules, counts, slots, index)
  local above = 0
  for i = #rules.rungs, index + 1, -1 do above = above + (counts[rules.rungs[i].name] or 0) end
  for i = index, 1, -1 do
    local rung = rules.rungs[i]
    above = above + (counts[rung.name] or 0)
    local most = rung.limit
    if rung.percent then most = math.max(1, floor(slots * rung.percent / 100 + 1e-9)) end
    if most and above >= most then return false end
  end
  return true
end

function caps.on_ladder(rung)  -- whether a job that asked for this duration holds a place there while it runs
  local rules = book.now()
  return rules.rungs[1] ~= nil and (rung == 'interactive' or rung_index(rules, rung) ~= nil)
end

function caps.assign(assigned)  -- count a start; a session is given no rung and counts at the shortest
  local floor_ = caps.floor()
  if assigned == '' then assigned = book.now().rungs[1].name end
  floor_.counts[assigned] = (floor_.counts[assigned] or 0) + 1
end

function caps.amended(rung, assigned, wanted)  -- what a running job is given by an amendment ('' to halt it), or nil
  local rules = book.now()
  if wanted == '' then return rung == 'interactive' and assigned ~= 'halted' and 'halted' or nil end
  if rung ~= 'default' or assigned == '' then return nil end
  local from, to = rung_index(rules, assigned), rung_index(rules, wanted)
  return to and (not from or to < from) and wanted or nil
end

function caps.fit(rung)  -- whether the ladder lets a job start, and which rung it is then assigned
  local rules = book.now()
  if rung == 'interactive' then
    return not rules.rungs[1] or has_room(rules, caps.floor().counts, caps.floor().slots, 1), ''
  end
  local index = rung_index(rules, rung)
  if not index then return true, '' end
  local floor_ = caps.floor()
  if rung ~= 'default' then return has_room(rules, floor_.counts, floor_.slots, index), rung end
  for i = #rules.rungs, 1, -1 do
    if has_room(rules, floor_.counts, floor_.slots, i) then return true, rules.rungs[i].name end
  end
  return false, ''
end

function caps.pool_room()  -- how many more jobs of lanes outside the reserve may run, if slots are reserved in the pool
  local reserve = book.now().reserve
  if not reserve then return math.huge end
  local floor_, counted = caps.floor(), 0
  for lane, n in pairs(floor_.lanes) do
    if reserve.leave_free or not reserve.lanes[lane] then counted = counted + n end
  end
  return math.max(0, floor_.slots - reserve.slots - counted)
end

function caps.with_room(freed_rung)  -- the classes that may have room now that jobs have left the ladder, or the pool
  local rules = book.now()
  if not rules.reserve and not rules.rungs[1] then return end
  local found = {}
  for number = 1, class.all() do
    local key = class.parts(number)
    if key.persist and ((freed_rung and key.rung ~= '') or (rules.reserve and not rules.reserve.lanes[key.lane]))
      and call('EXISTS', P .. 'w:' .. num(number)) == 1 then
      push(found, number)
    end
  end
  table.sort(found, function(a, b) return before(class.parts(a).name, class.parts(b).name) end)
  for _, number in ipairs(found) do push(tx.eligible, number) end
end
