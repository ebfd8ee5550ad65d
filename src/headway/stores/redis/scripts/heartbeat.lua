-- heartbeat: workers and their leases.

-- renew: move the deadline of a worker. Return the leases it has lost and the jobs it must stop.
-- args     worker, lease ms, confirm ms, whether to register, blob, slots, offers, then id and token of each lease it
--          holds
-- returns  now, state, lost ids, ids to cancel, leases it does not name and that are overdue (member, record, lease,
--          ...), id, text of its class and rung given, of those that were given one
local function renew(keys, args)
  begin(keys, args)
  local worker, lease_ms, confirm_ms, register = args[2], tonumber(args[3]), tonumber(args[4]), args[5] == '1'
  local row, ids, tokens = P .. 'worker:' .. args[2], {}, {}
  for i = 9, #args, 2 do
    push(ids, args[i])
    push(tokens, args[i + 1])
  end
  local state = call('HGET', row, 'state')
  if not register and (not state or state == 'dead') then return {now, 'dead', {}, {}, {}, {}} end
  if register then
    state = 'active'
    clear_idle(worker)
    call('HSET', row, 'started', num(now))
    call('SADD', P .. 'workers', worker)
  end
  call('HSET', row, 'blob', args[6], 'slots', args[7], 'offers', args[8], 'state', state, 'beat', num(now),
    'ends', num(now + lease_ms))
  local rules = rule_index.now()
  if register and (rules.rungs[1] or rules.reserve) then wake_all() end  -- more slots make more room
  local lost, cancel, named, overdue, given = {}, {}, {}, {}, {}
  for i, member in ipairs(members_of(ids)) do
    local held = member and call('HGET', P .. 'lease', member)
    if held and $lease.token(held) == tokens[i] and lease.rest(held).worker == worker then
      named[member] = held
      if call('HEXISTS', P .. 'cancel', member) == 1 then push(cancel, ids[i]) end
    else
      push(lost, ids[i])
    end
  end
  local mine = call('SMEMBERS', P .. 'l:' .. worker)
  table.sort(mine)
  for _, member in ipairs(mine) do
    local held = named[member] or call('HGET', P .. 'lease', member)
    local terms = held and band($lease.flags(held) or 0, $lease.TERMS) ~= 0
    local assigned = terms and lease.rest(held).assigned or ''
    if held and not named[member] and (tonumber($lease.started(held)) or 0) + confirm_ms <= now then
      push(overdue, member)
      push(overdue, record.without_payload(record.of(member) or ''), held)
    elseif assigned ~= '' then
      push(given, record.id(record.of(member)))
      push(given, class.parts($lease.class(held)).name, assigned)
    end
  end
  return {now, state, lost, cancel, overdue, given}
end

-- leases: the leases of a worker, or ('') of all workers past their deadline.
-- args     worker, how many at most, 1 with payloads
-- returns  now, then member, record, lease, class, cancelled or not, of each
local function leases(keys, args)
  begin(keys, args)
  local members, found = {}, {now}
  if args[2] ~= '' then
    members = call('SMEMBERS', P .. 'l:' .. args[2])
  else
    local gone, held = {}, call('HGETALL', P .. 'lease')
    for i = 1, #held, 2 do
      local worker = lease.rest(held[i + 1]).worker
      if gone[worker] == nil then
        local row = call('HMGET', P .. 'worker:' .. worker, 'state', 'ends')
        gone[worker] = not row[1] or row[1] == 'dead' or tonumber(row[2]) <= now
      end
      if gone[worker] then push(members, held[i]) end
    end
  end
  table.sort(members)
  for i, member in ipairs(members) do
    if i > tonumber(args[3]) then break end
    local held = call('HGET', P .. 'lease', member)
    if held then
      local name, cancelled = class.parts($lease.class(held)).name, call('HEXISTS', P .. 'cancel', member)
      local rec = record.of(member) or ''
      push(found, {member, args[4] == '1' and rec or record.without_payload(rec), held, name, cancelled})
    end
  end
  return found
end

-- mark_dead: a worker gets no more jobs and must register again.  args  worker, 1 if it has left: then forget it.
local function mark_worker_dead(keys, args)
  begin(keys, args)
  mark_dead(args[2])
  if args[3] == '1' then forget_worker(args[2]) end
  return 1
end

-- drain: ask a worker to claim no more.  args  worker.  returns  1, or 0 if no live worker has this id.
local function drain(keys, args)
  begin(keys, args)
  local state = call('HGET', P .. 'worker:' .. args[2], 'state')
  if not state or state == 'dead' then return 0 end
  call('HSET', P .. 'worker:' .. args[2], 'state', 'draining')
  clear_idle(args[2])
  notify(args[2] .. '.keeper')
  return 1
end

local function move(ids, act)  -- change jobs; return the state of each afterwards, '' if there is no such job
  local states = {}
  for i, member in ipairs(members_of(ids)) do
    local whole = member and pieces(member)
    states[i] = whole and (act(member, whole) or whole[3]) or ''
  end
  tx.changed = ids
  settle()
  return states
end

-- cancel: end queued jobs, and ask executing ones to stop.
-- args     reason, ids
-- returns  the state of each afterwards, '' if there is no such job
local function cancel(keys, args)
  begin(keys, args)
  return move(from(args, 3), function(member, whole)
    if whole[3] == 'Q' or whole[3] == 'E' then
      finish.cancel(member, whole[2], whole[3] == 'E' and whole[4], args[2])
      return whole[3] == 'Q' and 'X'
    end
  end)
end

-- preempt: move running elastic jobs to a shorter rung, and halt sessions.
-- args     job and rung ('' to halt) of each
-- returns  1 for each that changed, else 0
local function preempt(keys, args)
  begin(keys, args)
  local ids, changed, lowered = {}, {}, false
  for i = 2, #args, 2 do push(ids, args[i]) end
  for i, member in ipairs(members_of(ids)) do
    local held, wanted = member and call('HGET', P .. 'lease', member), args[2 * i + 1]
    local rest = held and lease.rest(held)
    local given = held and limits.preempted_to(class.parts($lease.class(held)).rung, rest.assigned or '', wanted)
    changed[i] = given and 1 or 0
    if given then
      rest.assigned = given
      call('HSET', P .. 'lease', member, lease.with_terms(held, rest))
      count('lowered.' .. given, 1)
      notify(rest.worker .. '.keeper')
      push(tx.changed, ids[i])
      lowered = lowered or wanted ~= ''
    end
  end
  tx.running_jobs = nil
  if lowered then limits.wake_classes_with_room(true) end
  settle()
  return changed
end

-- reschedule: move queued jobs to another lane, or let delayed ones run now.
-- args     lane or '', 1 to run now, ids
-- returns  the state of each afterwards, '' if there is no such job
local function reschedule(keys, args)
  begin(keys, args)
  return move({unpack(args, 4)}, function(member, whole)
    if whole[3] == 'Q' then finish.reschedule(member, whole[2], args[2], args[3] == '1') end
  end)
end

-- retry: queue ended jobs again with all counts reset.
-- args     1 to leave their dependants as they are, ids
-- returns  the state of each afterwards, '' if there is no such job
local function retry(keys, args)
  begin(keys, args)
  return move(from(args, 3), function(member, whole)
    local unique = record.extras(whole[2]).unique
    local free = not unique or call('HEXISTS', P .. 'unique', unique) == 0
    if free and string.find('FXD', whole[3], 1, true) then
      finish.retry(member, whole[2], whole[4], args[2] == '1')
      workflow.retried(member, whole[2])
      return 'Q'
    end
  end)
end
