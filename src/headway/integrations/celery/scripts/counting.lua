-- counting: choose a queue and count, in one step.

local function least(loads, open, prefix, some)
  local best, least_load
  for _, index in ipairs(some) do
    local queue = prefix .. index
    local load = loads[queue] or 0
    if (not open or open[queue]) and (not best or load < least_load) then best, least_load = queue, load end
  end
  return best
end

-- Return the queues that a live worker reads, or nothing if no worker is known.
local function open_queues()
  local found, any = {}, false
  for _, queue in ipairs(call('ZRANGEBYSCORE', P .. ':open', now, '+inf')) do found[queue], any = true, true end
  return any and found or nil
end

local function loads_now(measure)
  local loads, found = {}, call('HGETALL', P .. (measure == 'work' and ':work' or ':load'))
  for i = 1, #found, 2 do loads[found[i]] = tonumber(found[i + 1]) end
  return loads
end

local function indices(text, size)
  local found = {}
  for index in string.gmatch(text, '%d+') do found[#found + 1] = tonumber(index) end
  if #found == 0 then for index = 0, size - 1 do found[#found + 1] = index end end
  return found
end

-- Count without a task, for a while.
local function promise(kind, queue, by, ms)
  for _ = 1, by do
    call('ZADD', P .. ':' .. kind .. ':' .. queue, now + ms, call('HINCRBY', P .. ':tally', 'by_hand', 1))
  end
  touched[queue] = true
end

-- choose: the least loaded of some queues that are read; ties go to the lowest number.
-- args     measure (count or work), how many queues, their prefix, numbers of the queues to choose among ('' for all),
--          and if something is to be counted there by hand: how much, for how many ms
-- returns  the queue
local function choose(keys, args)
  begin(keys)
  local size, prefix, open = tonumber(args[2]), args[3], open_queues()
  local loads = loads_now(args[1])
  local queue = least(loads, open, prefix, indices(args[4], size)) or least(loads, open, prefix, indices('', size))
    or prefix .. '0'
  if args[5] then
    promise('promised', queue, tonumber(args[5]), tonumber(args[6]))
    settle()
  end
  return queue
end

-- Choose a queue for a task and let it wait there; one that waits already stays where it is. Return the queue, and
-- whether the task is new there.
local function give(to, member, name, user, fixed, some)
  local detail = call('HGET', P .. ':task', member)
  local queue = detail and match(detail, '^(.-)\t')
  if queue and (fixed == '' or fixed == queue) then return queue, false end
  if queue then take(member) end
  if fixed ~= '' then
    queue = fixed
    call('ZPOPMIN', P .. ':promised:' .. queue)
  elseif to.together and to.kept then
    queue = to.kept
  else
    to.known[some] = to.known[some] or indices(some, to.size)
    queue = least(to.loads, to.open, to.prefix, to.known[some])
    if not queue then
      to.known[''] = to.known[''] or indices('', to.size)
      queue = least(to.loads, to.open, to.prefix, to.known['']) or to.prefix .. '0'
    end
  end
  local cost = enter(member, queue, name, user)
  to.loads[queue] = (to.loads[queue] or 0) + (to.by_work and cost or 1)
  to.kept = to.kept or queue
  return queue, true
end

local function givers(args)
  return {
    by_work = args[1] == 'work', size = tonumber(args[2]), prefix = args[3], together = args[4] == '1',
    loads = loads_now(args[1]), open = open_queues(), known = {},
  }
end

-- count: choose a queue for each task and let it wait there. A task that waits already stays where it is.
-- args     measure, how many queues, their prefix, whether all go to one queue (1 or 0), then of each task: member,
--          name, user, its queue if that is fixed ('' to choose; counts made by hand there are used up first), numbers
--          of the queues to choose among ('' for all)
-- returns  the queue of each
-- holds    no other sender counts between a choice and its count
local function count(keys, args)
  begin(keys)
  local to, chosen = givers(args), {}
  for i = 5, #args, 5 do
    local queue, new = give(to, args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4])
    tally('counted', new and 1 or 0)
    chosen[#chosen + 1] = queue
  end
  settle()
  return chosen
end

-- push: the same, and put each task's message into the broker's list, which is on this server.
-- args     as count, but behind the fourth what lists begin with, and of each task three more: what its list's name
--          ends with, the text of its message up to its queue's name, and from there on
-- returns  the queue of each
-- holds    a task is counted if and only if its message was sent; one that waits already is not sent again
local function push(keys, args)
  begin(keys)
  local to, chosen = givers(args), {}
  for i = 6, #args, 8 do
    local queue, new = give(to, args[i], args[i + 1], args[i + 2], args[i + 3], args[i + 4])
    if new then
      call('LPUSH', args[5] .. queue .. args[i + 5], args[i + 6] .. queue .. args[i + 7])
      tally('counted', 1)
    end
    chosen[#chosen + 1] = queue
  end
  settle()
  return chosen
end

-- uncount: tasks that will not run wait no longer: refused by the broker, revoked, expired, unknown, or not found.
-- args     what to count them as, then members
-- returns  how many of them waited
local function uncount(keys, args)
  begin(keys)
  local taken = 0
  for i = 2, #args do
    if take(args[i]) then taken = taken + 1 end
  end
  tally(args[1], taken)
  settle()
  return taken
end

-- by_hand: count without a task, for a while.
-- args     promised (waiting) or claimed (running), queue, by how many, for how many ms
-- returns  how many wait in the queue now, how many run
-- holds    only counts by hand are removed; no count falls below zero
local function by_hand(keys, args)
  begin(keys)
  local key, queue, by = P .. ':' .. args[1] .. ':' .. args[2], args[2], tonumber(args[3])
  call('ZREMRANGEBYSCORE', key, '-inf', now)
  if by < 0 then call('ZPOPMIN', key, -by) end
  promise(args[1], queue, by, tonumber(args[4]))
  settle()
  return {pending_of(queue), running_of(queue)}
end

-- reset: remove all counts by hand, and compute all loads again from the tasks.
-- args     queues
-- returns  how many counts were removed
local function reset(keys, args)
  begin(keys)
  local forgotten = 0
  for _, queue in ipairs(args) do
    forgotten = forgotten + call('ZCARD', P .. ':promised:' .. queue) + call('ZCARD', P .. ':claimed:' .. queue)
    call('DEL', P .. ':promised:' .. queue, P .. ':claimed:' .. queue)
    touched[queue] = true
  end
  tally('reset', 1)
  settle()
  return forgotten
end
