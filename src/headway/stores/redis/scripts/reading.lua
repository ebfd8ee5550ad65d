-- reading: pictures of what waits and what runs.
--
-- snapshot: next due ('' for none), classes (text, waiting, oldest or '', head's order key or '', fair, blocked or ''),
-- floor (slots, running, counts by rung, elastic jobs and sessions as id, rung and start) or false.
snapshot = function()
  parks.pump()
  local rules, views, soon = book.now(), {}, nil
  local ladder, sessions = rules.rungs[1] ~= nil, false
  for number = 1, class.all() do
    local key, name = class.parts(number), num(number)
    local waiting, oldest, head, fair, blocked = 0, '', '', '0', ''
    sessions = sessions or key.rung == 'interactive'
    if book.shuts(key.lane) then blocked = 'paused'
    elseif key.persist and ladder and not caps.fit(key.rung) then blocked = 'ladder' end
    if key.persist then
      local front, open = call('ZRANGE', P .. 'w:' .. name, 0, 0, 'WITHSCORES'), {}
      if front[1] then waiting = call('ZCARD', P .. 'w:' .. name) end
      if parks.any(number) then
        open = call('ZRANGE', P .. 'open:' .. name, 0, 0, 'WITHSCORES')
        waiting = waiting + call('ZCARD', P .. 'open:' .. name)
      end
      if lines.clock(number) then
        fair = '1'
        oldest = front[1] and call('ZRANGE', P .. 'a:' .. name, 0, 0, 'WITHSCORES')[2] or ''
      elseif front[1] then
        oldest = eligible_of(front[1])
      end
      head = front[2] or open[2] or ''
      if front[2] and open[2] and tonumber(open[2]) < tonumber(front[2]) then head = open[2] end
    else
      local first = call('LRANGE', P .. 'tr:' .. name, 0, 0)[1]
      if first then
        waiting = call('LLEN', P .. 'tr:' .. name)
        oldest, head = now15, $transient.member(first)
      end
    end
    waiting = num(math.min(waiting, COUNTED))
    for _, value in ipairs({key.name, waiting, oldest, head, fair, blocked}) do push(views, value) end
  end
  if not quiet() then
    local due = call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
    local timed = call('ZRANGE', P .. 'timed', 0, 0, 'WITHSCORES')
    if due[2] then soon = tonumber(due[2]) end
    if timed[2] then soon = math.min(soon or math.huge, tonumber(timed[2])) end
  end
  local floor_ = false
  if ladder or sessions then
    local seen, counts = caps.floor(), {}
    for _, rung in ipairs(rules.rungs) do push(counts, seen.counts[rung.name] or 0) end
    local function told(entries)
      local found = {}
      for _, entry in ipairs(entries) do
        push(found, record.id(record.of(entry.member)))
        push(found, entry.rung, num(entry.started))
      end
      return found
    end
    floor_ = {seen.slots, seen.running, counts, told(seen.elastic), told(seen.sessions)}
  end
  return {soon and num(soon) or '', views, floor_}
end

-- pieces: all there is of one job: member, record, state, lease / back / ending or '', tries, moment it is due or '',
-- moment and park or '', moment a cancel was asked for or '', progress or '', text of its class.
local function pieces(member)
  local rec = call('HGET', P .. 'job', member)
  if not rec then return false end
  local tries = call('HGET', P .. 'tries', member) or ''
  local out = call('HGET', P .. 'out', member)
  if out then
    local number, before_ = record.class(rec), ending.before(out)
    if before_ ~= '' then number = $lease.class(before_) end  -- a requeue has it in the same place
    return {member, rec, $outcome.state(out), out, tries, '', '', '', '', class.parts(number).name}
  end
  local held = call('HGET', P .. 'lease', member)
  if held then
    return {
      member, rec, 'E', held, tries, '', '', call('HGET', P .. 'cancel', member) or '',
      call('HGET', P .. 'progress', member) or '', class.parts($lease.class(held)).name,
    }
  end
  local back = call('HGET', P .. 'again', member)
  return {
    member, rec, 'Q', back or '', tries, call('ZSCORE', P .. 'due', member) or '',
    call('HGET', P .. 'parked', member) or '', '', '',
    class.parts(back and $requeue.class(back) or record.class(rec)).name,
  }
end

local function members_of(ids)
  local found = {}
  each(ids, function(...)
    for _, member in ipairs(call('HMGET', P .. 'ids', ...)) do push(found, member) end
  end)
  return found
end

-- get: read jobs.  args  ids.  returns  now, then pieces or false for each.
local function get(keys, args)
  begin(keys, args)
  local found = {now}
  for i, member in ipairs(members_of({unpack(args, 2)})) do found[i + 1] = member and pieces(member) end
  return found
end

-- find: a stretch of jobs, newest first, of the states wanted.
-- args     states as letters ('' for any), the number to begin below (0: the newest), how many to give, bytes to stop
--          at
-- returns  now, the number to go on below (0: there is no more), then pieces
local function find(keys, args)
  begin(keys, args)
  local states, below, most, size = args[2], tonumber(args[3]), tonumber(args[4]), 0
  local found, bottom = {}, tonumber(call('HGET', P .. 'meta', 'bottom') or 1)
  local top = tonumber(call('HGET', P .. 'meta', 'seq') or 0) + 1
  if below == 0 or below > top then below = top end  -- from far above it would take forever, or never come down
  local members, go_on, reached = {}, 0, ''  -- reached: where a list of a state goes on that was not read to its end
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
    if member < reached then  -- between these may be others that were not read yet
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

-- find_ended: jobs that failed, were cancelled or are dead letters, those that ended last first.
-- args     state as a letter, the moment and the member to begin behind ('' for the last), how many to give, bytes to
--          stop at
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

local function look(keys, args)
  begin(keys, args)
  return {now, snapshot()}
end

-- survey: the snapshot, workers (blob, state, started, beat, deadline, leases), what executes (record, lease, class)
-- and the parts of the rules.
local function survey()
  local executing, held, parts = {}, call('HGETALL', P .. 'lease'), {}
  for i = 1, #held, 2 do
    local member, held_as = held[i], held[i + 1]
    local rec = call('HGET', P .. 'job', member) or ''
    push(executing, {member, rec, held_as, class.parts($lease.class(held_as)).name})
  end
  table.sort(executing, function(a, b) return a[1] < b[1] end)
  local names = call('HKEYS', P .. 'doc:rules')
  table.sort(names, before)
  for _, name in ipairs(names) do push(parts, call('HGET', P .. 'doc:rules', name)) end
  return {snapshot(), workers_now(), executing, parts}
end

local function survey_now(keys, args)
  begin(keys, args)
  return {now, survey()}
end

-- standing: one job in the middle of all that.
-- args     id, how many ahead to count, stretches to give
-- returns  now, pieces or false, survey, fair, jobs ahead, those of its tenant, limits (key, used or '', conforms or
--          '', ...), stretches of its class, last first
local function standing(keys, args)
  begin(keys, args)
  local member = call('HGET', P .. 'ids', args[2])
  if not member then return {now, false} end
  local whole = pieces(member)
  local seen, most = survey(), tonumber(args[3])
  local rec, number = whole[2], class.number(whole[10])
  local name, fair = num(number), lines.clock(number) and 1 or 0
  if whole[3] ~= 'Q' or whole[6] ~= '' then
    return {now, whole, seen, fair, 0, 0, {}, call('LRANGE', P .. 'stretch:' .. name, -tonumber(args[4]), -1)}
  end
  local park = whole[7] ~= '' and $blocked.limit(whole[7])
  local place = park and P .. 'p:' .. name .. ':' .. park or P .. 'w:' .. name
  local ahead, own, extras = call('ZRANK', place, member) or 0, 0, record.extras(rec)
  if fair == 1 then
    local from = text(extras.tenant or '')
    local key, at = call('ZSCORE', place, member), '[' .. from
    local stop = '(' .. from .. $share{order_key = key, member = member}
    while own < most do
      local some = call('ZRANGE', P .. 'live:' .. name, at, stop, 'BYLEX', 'LIMIT', 0, 200)
      for _, entry in ipairs(some) do
        if call('ZSCORE', place, $share.member(sub(entry, #from + 1))) then own = own + 1 end
      end
      if #some < 200 then break end
      at = '(' .. some[#some]
    end
  end
  local limits = {}
  for _, entry in ipairs(book.keys(record.task(rec), extras.tenant, extras.limits)) do
    local rule = entry.rule
    push(limits, entry.key)
    push(limits, rule.most and num(call('SCARD', P .. 'h:' .. entry.key)) or '')
    push(limits, rule.interval and num(caps.conforms(entry.key, rule)) or '')
  end
  return {now, whole, seen, fair, math.min(ahead, most), math.min(own, most), limits, {}}
end

-- waiting_of: a tenant's jobs that wait.
-- args     tenant
-- returns  now, then for each class that has any: its text, how many, since when the foremost waits
local function waiting_of(keys, args)
  begin(keys, args)
  local tenant, from, found, running, runs = args[2], text(args[2]), {now}, {}, {}
  local held = call('HGETALL', P .. 'lease')
  for i = 1, #held, 2 do
    if lease.rest(held[i + 1]).tenant == tenant then
      local number = $lease.class(held[i + 1])
      running[held[i]], runs[number] = true, (runs[number] or 0) + 1
    end
  end
  for number = 1, class.all() do
    local live, busy = P .. 'live:' .. num(number), runs[number] or 0
    local waiting = lines.clock(number) and call('ZLEXCOUNT', live, '[' .. from, '(' .. from .. ':') - busy or 0
    if waiting > 0 then
      for _, entry in ipairs(call('ZRANGE', live, '[' .. from, '(' .. from .. ':', 'BYLEX', 'LIMIT', 0, busy + 1)) do
        local member = $share.member(sub(entry, #from + 1))
        if not running[member] then
          push(found, class.parts(number).name, num(waiting))
          push(found, eligible_of(member))
          break
        end
      end
    end
  end
  return found
end

-- stats: the store in numbers.
-- returns  now, lanes (text of a class, waiting, delayed, oldest or '', ...), executing (text of a class ...), workers,
--          totals, those of the last two minutes, kept by state
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
        local by_age = lines.clock(number) and call('ZRANGE', P .. 'a:' .. name, 0, 0, 'WITHSCORES')
        oldest = by_age and by_age[2] or eligible_of(front[1])
      end
      for _, park in ipairs(call('HKEYS', P .. 'parks:' .. name)) do
        waiting = waiting + call('ZCARD', P .. 'p:' .. name .. ':' .. park)
      end
    end
    push(lanes, key.name, num(waiting))
    push(lanes, num(call('SCARD', P .. 'late:' .. name)), oldest)
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
