-- query: read jobs, workers and totals.

-- pieces: all records of one job: member, job, state, lease / requeue / outcome or '', attempts, moment it is due, held
-- or '', blocked or '', moment of a cancel request or '', progress or '', text of its class.
local function pieces(member)
  local rec = call('HGET', P .. 'job', member)
  if not rec then return false end
  local tries = call('HGET', P .. 'tries', member) or ''
  local out = call('HGET', P .. 'out', member)
  if out then
    local number, before_ = record.class(rec), finish.before(out)
    if before_ ~= '' then number = $lease.class(before_) end  -- at the same place in a requeue
    return {member, rec, $outcome.state(out), out, tries, '', '', '', '', class.parts(number).name}
  end
  local held = call('HGET', P .. 'lease', member)
  if held then
    return {
      member, rec, 'E', held, tries, '', '', call('HGET', P .. 'cancel', member) or '',
      call('HGET', P .. 'progress', member) or '', class.parts($lease.class(held)).name,
    }
  end
  local requeue = call('HGET', P .. 'again', member)
  local number = requeue and $requeue.class(requeue) or record.class(rec)
  local held = band(record.flags(rec), $job.WAITS) ~= 0 and call('SISMEMBER', P .. 'held:' .. num(number), member) == 1
  return {
    member, rec, 'Q', requeue or '', tries, held and 'held' or call('ZSCORE', P .. 'due', member) or '',
    call('HGET', P .. 'parked', member) or '', '', '', class.parts(number).name,
  }
end

-- get: read jobs.  args  ids.  returns  now, then pieces or false for each.
local function get(keys, args)
  begin(keys, args)
  local found = {now}
  for i, member in ipairs(members_of(from(args, 2))) do found[i + 1] = member and pieces(member) end
  return found
end

-- find: jobs in the wanted states, newest first.
-- args     states as letters ('' for any), the number to start below (0: the newest), how many jobs and bytes at most
-- returns  now, the number to continue below (0: there are no more), then pieces
local function find(keys, args)
  begin(keys, args)
  local states, below, most, size = args[2], tonumber(args[3]), tonumber(args[4]), 0
  local found, bottom = {}, tonumber(call('HGET', P .. 'meta', 'bottom') or 1)
  local top = tonumber(call('HGET', P .. 'meta', 'seq') or 0) + 1
  if below == 0 or below > top then below = top end  -- a loop from far above would not end in time
  local members, go_on, reached = {}, 0, ''  -- reached: the lowest member down to which all lists were read
  if states ~= '' and not string.find(states, '[QC]') then  -- each of these states has a list of its own
    for letter in string.gmatch(states, '.') do
      if letter == 'E' then
        for _, member in ipairs(call('HKEYS', P .. 'lease')) do push(members, member) end
      else
        local some = call('ZRANGE', P .. 'bad:' .. letter, '(' .. num(below), 0, 'BYSCORE', 'REV', 'LIMIT', 0, most + 1)
        for _, member in ipairs(some) do push(members, member) end
        if #some > most and some[#some] > reached then reached = some[#some] end
      end
    end
    table.sort(members, function(a, b) return a > b end)
  else
    local lowest = math.max(bottom, below - 1000)
    for seq = below - 1, lowest, -1 do push(members, member_of(seq)) end
    if lowest > bottom then go_on = lowest end
  end
  local limit = member_of(below)
  for _, member in ipairs(members) do
    if member < reached then  -- a list that was not read to its end may have members in between
      go_on = tonumber(reached) - BASE
      break
    end
    if member < limit then
      if #found == most or size > tonumber(args[5]) then
        go_on = tonumber(member) - BASE + 1
        break
      end
      local whole = pieces(member)
      if whole and (states == '' or string.find(states, whole[3], 1, true)) then
        push(found, whole)
        size = size + #whole[2] + #whole[4]
      end
    end
  end
  if reached ~= '' and go_on == 0 then go_on = tonumber(reached) - BASE end
  return {now, go_on, found}
end

-- find_ended: failed, cancelled or dead-lettered jobs, the last outcome first.
-- args     state as a letter, the moment and the member to start behind ('' for the last), how many jobs and bytes at
--          most
-- returns  now, 1 if there may be more, then pieces
local function find_ended(keys, args)
  begin(keys, args)
  local list, at, behind, most = P .. 'old:' .. args[2], args[3], args[4], tonumber(args[5])
  local found, size, skipped, more = {}, 0, 0, 0
  while more == 0 do
    local from = at == '' and '+inf' or at
    local some = call('ZRANGE', list, from, '-inf', 'BYSCORE', 'REV', 'LIMIT', skipped, most + 1, 'WITHSCORES')
    if #some == 0 then break end
    skipped = skipped + #some / 2
    for i = 1, #some, 2 do
      local member = some[i]
      if at == '' or tonumber(some[i + 1]) < tonumber(at) or member < behind then
        if #found == most or size > tonumber(args[6]) then
          more = 1
          break
        end
        local whole = pieces(member)
        if whole then
          push(found, whole)
          size = size + #whole[2] + #whole[4]
        end
      end
    end
  end
  return {now, more, found}
end

local function workers_now()
  local found = {}
  local ids = call('SMEMBERS', P .. 'workers')
  table.sort(ids, before)
  for _, id in ipairs(ids) do
    local row = call('HMGET', P .. 'worker:' .. id, 'blob', 'state', 'started', 'beat', 'ends')
    if row[1] and row[5] then
      push(found, {row[1], row[2], row[3], row[4], row[5], num(call('SCARD', P .. 'l:' .. id))})
    end
  end
  return found
end

-- stats: the totals of the store.
-- returns  now, classes (text, waiting, delayed, oldest or '', held, ...), executing (text of the class of each),
--          workers, totals, totals of the last two minutes, ended jobs by state
local function stats(keys, args)
  begin(keys, args)
  local lanes, executing, recent = {}, {}, {}
  for number = 1, class.all() do
    local key, name = class.parts(number), num(number)
    local waiting, oldest = call('LLEN', P .. 'tr:' .. name), ''
    if key.persist then
      waiting = call('ZCARD', P .. 'w:' .. name)
      local front = call('ZRANGE', P .. 'w:' .. name, 0, 0)
      if front[1] then
        local by_age = ordering.clock(number) and call('ZRANGE', P .. 'a:' .. name, 0, 0, 'WITHSCORES')
        oldest = by_age and by_age[2] or eligible_of(front[1])
      end
      for _, limit in ipairs(call('HKEYS', P .. 'parks:' .. name)) do
        waiting = waiting + call('ZCARD', P .. 'p:' .. name .. ':' .. limit)
      end
    end
    push(lanes, key.name, num(waiting))
    push(lanes, num(call('SCARD', P .. 'late:' .. name)), oldest)
    push(lanes, num(call('SCARD', P .. 'held:' .. name)))
  end
  for _, held in ipairs(call('HVALS', P .. 'lease')) do push(executing, class.parts($lease.class(held)).name) end
  local totals = call('HGETALL', P .. 'tally')
  for _, minute in ipairs(call('SMEMBERS', P .. 'minutes')) do
    for _, value in ipairs(call('HGETALL', P .. 'm:' .. minute)) do
      push(totals, value)
      if tonumber(minute) >= floor(now / 60000) - 1 then push(recent, value) end
    end
  end
  local kept = {}
  for _, letter in ipairs({'F', 'X', 'D'}) do push(kept, letter, num(call('ZCARD', P .. 'bad:' .. letter))) end
  return {now, lanes, executing, workers_now(), totals, recent, kept}
end
