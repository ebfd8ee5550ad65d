-- limits: concurrency limits, rates, the ladder and the reserve of the pool, checked in the step that claims.
--
-- meta has the rules in force as JSON. The client that wrote them last compiled them: see ``lua_rules.py``. A server
-- decodes each version once.
local rule_indexes = {}
local REMEMBERED_MAX = 5000  -- combinations of limits that a server remembers for each namespace, to bound memory
local rule_index = {}
local NO_TERMS = '\0\0\0\0\0\0'  -- of a lease that has no rung and was never blocked: three empty texts

function rule_index.now()
  if tx.rule_index then return tx.rule_index end
  local version = call('HGET', P .. 'meta', 'rules') or '0'
  local known = rule_indexes[P]
  if not known or known.version ~= version then
    local body = call('HGET', P .. 'meta', 'book')
    known = body and cjson.decode(body) or cjson.decode('{}')
    known.version, known.found, known.held, known.remembered = version, {}, {}, 0
    known.limits, known.rungs, known.costs, known.weights =
      known.limits or {}, known.rungs or {}, known.costs or {}, known.weights or {}
    known.lanes, known.tasks, known.tenants = known.lanes or {}, known.tasks or {}, known.tenants or {}
    known.learned = next(known.costs) ~= nil
    known.by_task, known.by_tenant = next(known.tasks) ~= nil, next(known.tenants) ~= nil
    for _, rule in pairs(known.limits) do
      known.by_task = known.by_task or not rule.param
      known.by_tenant = known.by_tenant or rule.by_tenant or false
    end
    known.may_limit = known.by_task or known.by_tenant
    rule_indexes[P] = known
  end
  tx.rule_index = known
  return known
end

function rule_index.lane_paused(lane)
  local rules = rule_index.now()
  return rules.everything or rules.lanes[lane]
end

local function in_order(one, other)
  local a, b = one.interval ~= nil, other.interval ~= nil
  if a ~= b then return b end
  return before(one.key, other.key)
end

local function applies(rule, task)
  if rule.param or not rule.tasks then return not rule.param end
  for _, pattern in ipairs(rule.tasks) do
    if string.match(task, pattern) then return true end
  end
  return false
end

local function remember(rules)
  rules.remembered = rules.remembered + 1
  if rules.remembered > REMEMBERED_MAX then rules.found, rules.held, rules.remembered = {}, {}, 0 end
end

local function entry_of(key, rule)  -- a limit that counts a job: most leases, or starts at intervals with a burst
  local interval = rule.interval
  local ahead_max = interval and (rule.burst - 1) * interval
  return {key = key, set = P .. 'h:' .. key, most = rule.most, interval = interval, ahead_max = ahead_max}
end

local function find_keys(rules, task, tenant, own)
  local found, limited, paused = {held = {}, packed = '', sets = {}, least = math.huge}, {}, {most = 0}
  if rules.tasks[task] then push(found, entry_of('=paused:task:' .. task, paused)) end
  if tenant and rules.tenants[tenant] then push(found, entry_of('=paused:tenant:' .. tenant, paused)) end
  for name, rule in pairs(rules.limits) do
    if applies(rule, task) then
      push(limited, entry_of(rule.by_tenant and rule.counter .. '=' .. (tenant or '') or name, rule))
    end
  end
  for _, key in ipairs(texts(own)) do
    local rule = rules.limits[string.match(key, '^[^=]*')]
    if rule then push(limited, entry_of(key, rule)) end
  end
  table.sort(limited, in_order)
  for _, entry in ipairs(limited) do push(found, entry) end
  for _, entry in ipairs(found) do
    if entry.most then
      push(found.held, entry.key)
      push(found.sets, entry.set)
      found.packed, found.least = found.packed .. text(entry.key), math.min(found.least, entry.most)
    end
    if entry.interval then
      found.rated = found.rated or {}
      push(found.rated, entry)
    end
  end
  found.any, found.terms = found[1] ~= nil, NO_TERMS .. found.packed
  return found
end

-- Return the limits that count a job: pauses, then concurrency, then rates. ``held`` are the keys that count its lease,
-- and ``packed`` the same as one text. Jobs of one task, tenant and keys share the answer, since texts cost the most.
function rule_index.keys(rec, tenant, own, after_id)
  local rules = tx.rule_index or rule_index.now()
  local task = rules.by_task and record.task(rec, after_id) or ''
  local sharer = rules.by_tenant and tenant or ''
  local of_task = rules.found[task]
  if not of_task then
    of_task = {}
    rules.found[task] = of_task
  end
  local of_tenant = of_task[sharer]
  if not of_tenant then
    of_tenant = {}
    of_task[sharer] = of_tenant
  end
  local found = of_tenant[own or '']
  if not found then
    found = find_keys(rules, task, sharer ~= '' and text_at(sharer, 1) or nil, own or '')
    of_tenant[own or ''] = found
    remember(rules)
  end
  return found
end

function rule_index.step(task, tenant)  -- the virtual time between two jobs of a task and tenant
  local rules = rule_index.now()
  local cost = 1000000
  if rules.learned then
    cost = rules.costs[string.gsub(task, '=', '%%3D') .. '=' .. tenant] or rules.costs[task] or cost
  end
  return math.max(1, floor(cost / (rules.weights[tenant] or rules.default_weight or 1)))
end

local limits = {}

local function used(set)
  local n = call('SCARD', set)
  tx.room[set] = n
  return n
end

local function leases_max()  -- how many leases there may be after this call
  local n = call('HLEN', P .. 'lease') + tx.claims_max
  tx.leases_max = n
  return n
end

function limits.sets(keys)  -- the sets that have the leases of each limit
  local found = {}
  for i, key in ipairs(keys) do found[i] = P .. 'h:' .. key end
  return found
end

-- Return the sets of the limits that count a lease. terms: the lease from the place of its rung on.
function limits.held(terms)
  local rules = tx.rule_index or rule_index.now()
  local held = rules.held[terms]
  if held then return held end
  local behind = 1
  for _ = 1, 3 do behind = behind + 2 + i2(terms, behind) end
  local packed = sub(terms, behind)
  held = rules.held[packed]
  if not held then
    held = limits.sets(texts(packed))
    rules.held[packed] = held
    remember(rules)
  end
  -- Other terms have how long a job was blocked: too many to remember.
  if sub(terms, 1, #NO_TERMS) == NO_TERMS then rules.held[terms] = held end
  return held
end

local function reached(key)
  local at = tx.reached[key]
  if at == nil then
    at = math.max(tonumber(call('HGET', P .. 'rates', key) or nil) or 0, now * 1000)
    tx.reached[key] = at
  end
  return at
end

function limits.next_start_at(entry)  -- the millisecond from which a rate allows the next start
  return floor((reached(entry.key) - entry.ahead_max) / 1000)
end

function limits.hold(member, keys)  -- count a lease
  local room, holds, held, sets = tx.room, tx.holds, tx.held, keys.sets
  for i = 1, #sets do
    local set = sets[i]
    local n = room[set]
    if n then room[set] = n + 1 end
    gather_few(holds, held, set, member)
  end
end

-- Count a lease, and use up one start of each rate. If a key has no room, count nothing, and return the first such key
-- and the moment it has room, if that is known. No lease counts twice for a limit, so a limit above the number of all
-- leases has room.
function limits.start(member, keys)
  local most_leases, rated = tx.leases_max or leases_max(), keys.rated
  if keys.least <= most_leases or rated then
    local room, reached_at = tx.room, tx.reached
    for i = 1, #keys do
      local entry = keys[i]
      local most, key = entry.most, entry.key
      if most and most <= most_leases and (room[entry.set] or used(entry.set)) >= most then return key, nil end
      if entry.interval and (reached_at[key] or reached(key)) - entry.ahead_max >= (now + 1) * 1000 then
        return key, limits.next_start_at(entry)
      end
    end
  end
  if rated then
    for i = 1, #rated do
      local key = rated[i].key
      tx.reached[key], tx.started[key] = tx.reached[key] + rated[i].interval, true
    end
  end
  limits.hold(member, keys)
end

function limits.flush()  -- write what start has counted
  bulk_few('SADD', tx.held, tx.holds)
  local rates = {}
  for key in pairs(tx.started) do push(rates, key, num(tx.reached[key])) end
  bulk('HSET', P .. 'rates', rates)
  tx.holds, tx.held, tx.started = {}, {}, {}
end

function limits.release(freed, leases_of)  -- the sets of limits in order, and the leases that each no longer counts
  bulk_few('SREM', freed, leases_of)
  if #freed > 0 and not quiet() and call('EXISTS', P .. 'parked') == 1 then
    local keys = {}
    for i, set in ipairs(freed) do keys[i] = sub(set, #P + 3) end
    blocked_queue.release(keys)
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

-- The jobs that run: read from the leases at the first use, then kept up to date with the claims of this call.
function limits.running_jobs()
  if not tx.running_jobs then
    local running_jobs = {slots = live_slots(), running = 0, counts = {}, elastic = {}, sessions = {}, lanes = {}}
    local held, shortest = call('HGETALL', P .. 'lease'), rule_index.now().rungs[1]
    for i = 1, #held, 2 do
      local held_as = held[i + 1]
      local started = tonumber($lease.started(held_as))
      local key, assigned = class.parts($lease.class(held_as)), lease.rest(held_as).assigned
      running_jobs.running = running_jobs.running + 1
      running_jobs.lanes[key.lane] = (running_jobs.lanes[key.lane] or 0) + 1
      if key.rung == 'interactive' then
        if shortest then running_jobs.counts[shortest.name] = (running_jobs.counts[shortest.name] or 0) + 1 end
        push(running_jobs.sessions, {member = held[i], rung = assigned or '', started = started})
      elseif assigned and assigned ~= '' then
        running_jobs.counts[assigned] = (running_jobs.counts[assigned] or 0) + 1
        if key.rung == 'default' then
          push(running_jobs.elastic, {member = held[i], rung = assigned, started = started})
        end
      end
    end
    table.sort(running_jobs.elastic, function(a, b) return a.member < b.member end)
    table.sort(running_jobs.sessions, function(a, b) return a.member < b.member end)
    tx.running_jobs = running_jobs
  end
  return tx.running_jobs
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

function limits.on_ladder(rung)  -- whether a job that asked for this duration takes a place on the ladder
  local rules = rule_index.now()
  return rules.rungs[1] ~= nil and (rung == 'interactive' or rung_index(rules, rung) ~= nil)
end

function limits.count_rung(assigned)  -- count a start; a session has no rung and counts at the shortest
  local running_jobs = limits.running_jobs()
  if assigned == '' then assigned = rule_index.now().rungs[1].name end
  running_jobs.counts[assigned] = (running_jobs.counts[assigned] or 0) + 1
end

-- Return the rung that a preemption gives a running job, or nil if it changes nothing. wanted: '' to halt the job.
function limits.preempted_to(rung, assigned, wanted)
  local rules = rule_index.now()
  if wanted == '' then return rung == 'interactive' and assigned ~= 'halted' and 'halted' or nil end
  if rung ~= 'default' or assigned == '' then return nil end
  local from, to = rung_index(rules, assigned), rung_index(rules, wanted)
  return to and (not from or to < from) and wanted or nil
end

function limits.fit(rung)  -- whether the ladder lets a job start, and the rung it is assigned then
  local rules = rule_index.now()
  if rung == 'interactive' then
    return not rules.rungs[1] or has_room(rules, limits.running_jobs().counts, limits.running_jobs().slots, 1), ''
  end
  local index = rung_index(rules, rung)
  if not index then return true, '' end
  local running_jobs = limits.running_jobs()
  if rung ~= 'default' then return has_room(rules, running_jobs.counts, running_jobs.slots, index), rung end
  for i = #rules.rungs, 1, -1 do
    if has_room(rules, running_jobs.counts, running_jobs.slots, i) then return true, rules.rungs[i].name end
  end
  return false, ''
end

function limits.pool_room()  -- how many more jobs outside the reserved lanes may run in the pool
  local reserve = rule_index.now().reserve
  if not reserve then return math.huge end
  local running_jobs, counted = limits.running_jobs(), 0
  for lane, n in pairs(running_jobs.lanes) do
    if reserve.leave_free or not reserve.lanes[lane] then counted = counted + n end
  end
  return math.max(0, running_jobs.slots - reserve.slots - counted)
end

-- Let classes try again that may have room, after jobs have left the pool, or the ladder.
function limits.wake_classes_with_room(freed_rung)
  local rules = rule_index.now()
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
