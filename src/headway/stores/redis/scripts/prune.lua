-- prune: delete what need not be kept, in bounded batches.
local LOOKED_MAX = 5000  -- ended jobs that one call looks at in a sorted set while live jobs need them

local function any_flows()  -- whether the namespace has ever had an edge or a batch; else no job is needed
  if tx.flows == nil then tx.flows = call('HEXISTS', P .. 'meta', 'flows') == 1 end
  return tx.flows
end

local function add_unneeded(into, members, most)  -- up to this many that no live job needs
  local flows = any_flows()
  for _, member in ipairs(members) do
    if #into < most and not (flows and workflow.is_needed(record.of(member))) then push(into, member) end
  end
end

-- Return up to this many jobs of a sorted set up to a score that no live job needs. If a call looks at LOOKED_MAX jobs,
-- the next one goes on from there, so that jobs that are needed hold up no others for long.
local function unneeded(name, up_to, most)
  local field, found, looked, last = 'looked:' .. name, {}, 0, nil
  local from = any_flows() and call('HGET', P .. 'meta', field) or '-inf'
  repeat
    local some = call('ZRANGE', P .. name, from, up_to, 'BYSCORE', 'LIMIT', looked, most)
    add_unneeded(found, some, most)
    looked, last = looked + #some, some[#some]
  until #some < most or #found == most or looked >= LOOKED_MAX
  if looked >= LOOKED_MAX and #found < most then
    call('HSET', P .. 'meta', field, call('ZSCORE', P .. name, last))
  elseif from ~= '-inf' then
    call('HDEL', P .. 'meta', field)
  end
  return found
end

-- The oldest entries of the list of completed jobs. Those that a live job needs go to the set ``kept``. looks: at how
-- many jobs to look at most.
local function prune_completed(before_at, most, looks)
  local old, seen = {}, {}
  looks = looks or math.huge
  while #old < most and looks > 0 do
    local entry = call('LINDEX', P .. 'fin', 0)
    if not entry or tonumber($completed.finished(entry)) > before_at then break end
    local rest, taken = {}, 0
    for at = $completed.size + 1, #entry, $member.size do
      local member = sub(entry, at, at + $member.size - 1)
      if #old < most and looks > 0 then
        taken = taken + 1
        local out = call('HGET', P .. 'out', member)
        if out and $outcome.state(out) == 'C' and $outcome.finished(out) == $completed.finished(entry)
          and not seen[member] then
          looks, seen[member] = looks - 1, true
          if any_flows() and workflow.is_needed(record.of(member)) then
            call('ZADD', P .. 'kept', $outcome.finished(out), member)
          else
            push(old, member)
          end
        end
      else
        push(rest, member)
      end
    end
    if #rest == 0 then
      call('LPOP', P .. 'fin')
    else
      call('LSET', P .. 'fin', 0, $completed[..members](entry) .. concat(rest))
    end
  end
  return old
end

local function old_completed(until_at, most)
  local old = unneeded('kept', num(until_at), most)
  for _, member in ipairs(prune_completed(until_at, most - #old)) do push(old, member) end
  return old
end

local function prune_workers(kept_ms)
  for _, id in ipairs(call('SMEMBERS', P .. 'workers')) do
    local row = call('HMGET', P .. 'worker:' .. id, 'state', 'ends')
    local ends = tonumber(row[2] or 0)
    if row[1] ~= 'dead' and ends <= now then mark_dead(id) end
    if ends + kept_ms <= now then forget_worker(id) end
  end
end

-- Return the moment up to which outcomes may be deleted: none that waits for the archiver.
local function archived_until(moment)
  if call('EXISTS', P .. 'archive') == 0 then return moment end
  local first = call('ZRANGE', P .. 'arch', 0, 0, 'WITHSCORES')
  return first[2] and math.min(moment, tonumber(first[2]) - 1) or moment
end

-- Return the oldest jobs of the states that hold more than their maximum, which begin with the ninth argument.
local function prune_beyond(args, most)
  local over, until_at = {}, archived_until(now)
  local completed = call('HLEN', P .. 'out')
  for i, letter in ipairs({'F', 'X', 'D'}) do
    local count, bound = call('ZCARD', P .. 'old:' .. letter), tonumber(args[9 + i])
    completed = completed - count
    local surplus = math.min(count - bound, any_flows() and LOOKED_MAX or most - #over)
    if bound > 0 and surplus > 0 then
      local some = call('ZRANGE', P .. 'old:' .. letter, '-inf', num(until_at), 'BYSCORE', 'LIMIT', 0, surplus)
      add_unneeded(over, some, most)
    end
  end
  local bound = tonumber(args[9])
  local surplus = completed - bound
  if bound > 0 and surplus > 0 then
    local looks = math.min(surplus, LOOKED_MAX)
    local some = call('ZRANGE', P .. 'kept', '-inf', num(until_at), 'BYSCORE', 'LIMIT', 0, looks)
    add_unneeded(over, some, most)
    for _, member in ipairs(prune_completed(until_at, most - #over, surplus - #some)) do push(over, member) end
  end
  return over
end

-- prune: cancel a batch of expired jobs, delete a batch of old ones and all stale entries.
-- args     how many at most, how long to keep completed, failed, cancelled and dead-lettered jobs, workers and
--          stretches (ms); how many completed, failed, cancelled and dead-lettered jobs to keep (0: no bound)
-- returns  how many jobs it touched
local function prune(keys, args)
  begin(keys, args)
  local most, touched = tonumber(args[2]), 0
  local expired = call('ZRANGE', P .. 'expiry', '-inf', num(now), 'BYSCORE', 'LIMIT', 0, most)
  for _, member in ipairs(expired) do
    local whole = pieces(member)
    if whole and whole[3] == 'Q' then
      finish.cancel_queued(member, whole[2], 'expired')
      push(tx.changed, record.id(whole[2]))
      touched = touched + 1
    end
    call('ZREM', P .. 'expiry', member)  -- put_back adds an executing job again
  end
  local old = old_completed(archived_until(now - tonumber(args[3])), most)
  for i, letter in ipairs({'F', 'X', 'D'}) do
    if #old < most then
      local until_at = num(archived_until(now - tonumber(args[3 + i])))
      for _, member in ipairs(unneeded('old:' .. letter, until_at, most - #old)) do push(old, member) end
    end
  end
  finish.forget(old)
  local beyond = prune_beyond(args, most - #old)
  finish.forget(beyond)
  touched = touched + #beyond
  local scopes = call('ZRANGE', P .. 'idem_until', '-inf', num(now), 'BYSCORE', 'LIMIT', 0, most)
  for _, scope in ipairs(scopes) do
    local kept = call('HGET', P .. 'idem', scope)
    if kept and tonumber($idempotency.expires(kept)) <= now then call('HDEL', P .. 'idem', scope) end
    call('ZREM', P .. 'idem_until', scope)
  end
  prune_workers(tonumber(args[7]))
  workflow.prune_batches(tonumber(args[3]), most)
  for number = 1, class.all() do
    local key = P .. 'stretch:' .. num(number)
    local entry = call('LINDEX', key, 0)
    while entry and tonumber($wait_interval.ended(entry)) + tonumber(args[8]) <= now do
      call('LPOP', key)
      entry = call('LINDEX', key, 0)
    end
  end
  for _, minute in ipairs(call('SMEMBERS', P .. 'minutes')) do  -- add old minutes to one total
    if tonumber(minute) < floor(now / 60000) - 1440 then
      local counts = call('HGETALL', P .. 'm:' .. minute)
      for i = 1, #counts, 2 do call('HINCRBY', P .. 'tally', counts[i], counts[i + 1]) end
      call('DEL', P .. 'm:' .. minute)
      call('SREM', P .. 'minutes', minute)
    end
  end
  local rates = call('HGETALL', P .. 'rates')
  for i = 1, #rates, 2 do
    if tonumber(rates[i + 1]) <= now * 1000 then call('HDEL', P .. 'rates', rates[i]) end
  end
  local bottom = tonumber(call('HGET', P .. 'meta', 'bottom') or 1)
  local top = tonumber(call('HGET', P .. 'meta', 'seq') or 0)
  for _ = 1, 5000 do  -- no job has a lower number
    if bottom > top or call('HEXISTS', P .. 'job', member_of(bottom)) == 1 then break end
    bottom = bottom + 1
  end
  call('HSET', P .. 'meta', 'bottom', num(bottom))
  tx.flow = tx.flow or (not quiet() and workflow.is_left())
  settle()
  return touched + #old
end

-- unarchived: start or continue to archive. Return the oldest ended jobs that are not archived.
-- args     for how long ended jobs wait for an archiver that is away (ms), how many at most
-- returns  now, pieces of each
local function unarchived(keys, args)
  begin(keys, args)
  call('SET', P .. 'archive', '1', 'PX', args[2])
  local found = {now}
  for _, member in ipairs(call('ZRANGE', P .. 'arch', 0, tonumber(args[3]) - 1)) do
    local whole = pieces(member)
    if whole then push(found, whole) else call('ZREM', P .. 'arch', member) end
  end
  return found
end

-- archived: the archive has these jobs.
-- args     member and moment of the outcome of each; a job that has ended again since then stays
local function archived(keys, args)
  begin(keys, args)
  for i = 2, #args, 2 do
    local ended = call('ZSCORE', P .. 'arch', args[i])
    if ended and tonumber(ended) == tonumber(args[i + 1]) then call('ZREM', P .. 'arch', args[i]) end
  end
  return 1
end

-- purge: delete ended jobs now.
-- args     states as letters, how many at most, 1 if ids follow, ids
-- returns  how many
local function purge(keys, args)
  begin(keys, args)
  local states, most, gone = args[2], tonumber(args[3]), {}
  if args[4] == '1' then
    local seen = {}
    for _, member in ipairs(members_of(from(args, 5))) do
      local out = member and not seen[member] and call('HGET', P .. 'out', member)
      seen[member] = true
      if out and string.find(states, $outcome.state(out), 1, true) then add_unneeded(gone, {member}, most) end
    end
  else
    for _, letter in ipairs({'F', 'X', 'D'}) do
      if string.find(states, letter, 1, true) then
        for _, member in ipairs(unneeded('bad:' .. letter, '+inf', most - #gone)) do push(gone, member) end
      end
      if #gone == most then break end
    end
    if string.find(states, 'C', 1, true) then
      for _, member in ipairs(old_completed(now, most - #gone)) do push(gone, member) end
    end
  end
  finish.forget(gone)
  return #gone
end
