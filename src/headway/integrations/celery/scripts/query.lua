-- query: loads, totals, and the members that wait and run.

-- loads: the load of each queue, at one moment.
-- args     queues; all other known queues are added
-- returns  now, then of each queue: name, what waits, what runs, ms of work, whether it is read (1 or 0; -1 if no
--          worker is known at all), since when its oldest task waits (0 if none does)
local function loads(keys, args)
  begin(keys)
  local names, seen, found, open = {}, {}, {now}, open_queues()
  for _, queue in ipairs(args) do names[#names + 1], seen[queue] = queue, true end
  local others = call('HKEYS', P .. ':load')
  table.sort(others)
  for _, queue in ipairs(others) do
    if not seen[queue] then names[#names + 1] = queue end
  end
  for _, queue in ipairs(names) do
    local oldest = call('ZRANGE', P .. ':pending:' .. queue, 0, 0, 'WITHSCORES')
    local work = tonumber(call('HGET', P .. ':work', queue) or 0)
    local reading = -1
    if open then reading = open[queue] and 1 or 0 end
    found[#found + 1] = {queue, pending_of(queue), running_of(queue), work, reading, tonumber(oldest[2] or 0)}
  end
  return found
end

-- figures: totals, the busiest users, and the nodes.
-- args     how many users at most
-- returns  totals (name, number, ...), the busiest users (name, number, ...), nodes (name, end of lease,
--          ...)
local function figures(keys, args)
  begin(keys)
  local users, found = call('HGETALL', P .. ':users'), {}
  for i = 1, #users, 2 do found[#found + 1] = {users[i], tonumber(users[i + 1])} end
  table.sort(found, function(a, b) return a[2] > b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  local busiest = {}
  for i = 1, math.min(#found, tonumber(args[1])) do
    busiest[#busiest + 1] = found[i][1]
    busiest[#busiest + 1] = found[i][2]
  end
  local tallied, nodes = {}, {}
  for i, word in ipairs(call('HGETALL', P .. ':tally')) do tallied[i] = word end
  local alive = call('ZRANGEBYSCORE', P .. ':nodes', now, '+inf')
  for _, node in ipairs(alive) do
    nodes[#nodes + 1] = node
    nodes[#nodes + 1] = call('HLEN', P .. ':lease:' .. node)
  end
  return {tallied, busiest, nodes}
end

-- check: compare the sets with each other, and the numbers with the sets.
-- returns  how many do not agree
local function check(keys)
  begin(keys)
  local base, wrong, waiting, runs = match(P, '^(.*)headway:celery:'), 0, 0, 0
  local noted = call('HGETALL', P .. ':load')
  for i = 1, #noted, 2 do
    local queue, pending, running = noted[i], pending_of(noted[i]), running_of(noted[i])
    waiting = waiting + call('ZCARD', P .. ':pending:' .. queue)
    runs = runs + call('SCARD', P .. ':running:' .. queue)
    local shown = call('MGET', base .. 'queue:' .. queue .. ':pending', base .. 'queue:' .. queue .. ':running')
    if tonumber(noted[i + 1]) ~= pending + running then wrong = wrong + 1 end
    if tonumber(shown[1] or 0) ~= pending then wrong = wrong + 1 end
    if tonumber(shown[2] or 0) ~= running then wrong = wrong + 1 end
    if pending + running == 0 and tonumber(call('HGET', P .. ':work', queue) or 0) ~= 0 then wrong = wrong + 1 end
  end
  local leased = 0
  for _, node in ipairs(call('ZRANGE', P .. ':nodes', 0, -1)) do
    leased = leased + call('HLEN', P .. ':lease:' .. node)
  end
  return wrong + math.abs(call('HLEN', P .. ':task') - waiting) + math.abs(leased - runs)
end

-- waiting: a page of the members that wait in a queue, the oldest first.
-- args     queue, from, to
-- returns  now, then members and when each was counted, in turn
local function waiting(keys, args)
  begin(keys)
  local found = {now}
  for _, member in ipairs(call('ZRANGE', P .. ':pending:' .. args[1], args[2], args[3])) do
    found[#found + 1] = member
    found[#found + 1] = tonumber(call('ZSCORE', P .. ':pending:' .. args[1], member))
  end
  return found
end

-- leases: all leases.
-- returns  leases
local function leases(keys)
  begin(keys)
  local found = {}
  for _, node in ipairs(call('ZRANGE', P .. ':nodes', 0, -1)) do
    for _, member in ipairs(call('HKEYS', P .. ':lease:' .. node)) do found[#found + 1] = member .. '@' .. node end
  end
  return found
end

-- held: the members that live nodes reported to hold.
local function held(keys)
  begin(keys)
  local found = {}
  for _, node in ipairs(call('ZRANGEBYSCORE', P .. ':nodes', now, '+inf')) do
    for _, member in ipairs(call('SMEMBERS', P .. ':held:' .. node)) do found[#found + 1] = member end
  end
  return found
end
