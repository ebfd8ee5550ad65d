-- exchange: apply reports and progress, make due jobs eligible, claim by the plan and take a snapshot, in one step.
-- args     worker ('' for none), claim id, whether a snapshot is wanted, whether to wait (2: and leave the claim open),
--          for which lanes (* for any), whether there is a plan, how many classes it knew (-1: any number), its totals
--          free and free_below, leave_free, number of reports, reports, number of progress notes, member, token and
--          blob of each, number of takes, class, most, below_reserve, over and until of each
-- returns  now, state of the worker, more, refused (index, answer ...), of the leases: their records, their members in
--          one text, those that are not fresh (index, lease ...), their classes and rungs (text, how many in a row,
--          rung or '' ...); version of the rules if they have rungs, else ''; snapshot or false
-- holds    never more leases than the totals of the plan, the slots of the worker or any limit in force allow
local function note_idle(worker, waits, lanes, before_)  -- a worker that claims again while it is idle keeps its turn
  if before_ and (not waits or before_ ~= lanes) then
    clear_idle(worker)
    before_ = false
  end
  if waits and not before_ then
    call('HSET', P .. 'worker:' .. worker, 'lanes', lanes)
    call('ZADD', P .. 'wait', num(call('HINCRBY', P .. 'meta', 'turn', 1)), worker)
  end
end

local function leases_again(worker, token, out)  -- a repeated claim gets the same leases, if still held
  local members = call('SMEMBERS', P .. 'l:' .. worker)
  table.sort(members)
  for _, member in ipairs(members) do
    local held = call('HGET', P .. 'lease', member)
    if held and $lease.token(held) == token then
      claim.give(out, member, record.of(member) or '', held)
      claim.give_run(out, class.parts($lease.class(held)).name, 1, lease.rest(held).assigned or '')
    end
  end
end

local function claim_by(plan, takes, row, worker, token, out)
  if row.claim == token then
    leases_again(worker, token, out)
    if out.n > 0 or not row.opens then return false end  -- a direct lease may have ended before the worker got it
  end
  local free = math.min(plan.free, row.slots - call('SCARD', P .. 'l:' .. worker))
  local below, more = math.min(plan.below, limits.pool_room()), false
  local claimed = 0
  tx.claims_max, tx.leases_max, tx.room = free, nil, {}
  for _, take in ipairs(takes) do
    local want = math.min(take.most, free)
    if take.below then want = math.min(want, below) end
    local number = want > 0 and class.known(take.name)
    if number and not rule_index.lane_paused(class.parts(number, take.name).lane) then
      take.number = number
      local got, unseen = claim.take(take, want, worker, token, out)
      more = more or unseen
      claimed = claimed + got
      if take.over ~= '' then count('promoted.' .. class.parts(number).lane .. '.' .. take.over, got) end
      free = free - got
      if take.below or plan.leave_free then below = below - got end
    end
  end
  count('claimed', claimed)
  if claimed > 0 then call('HSET', P .. 'worker:' .. worker, 'claim', token) end
  return more
end

-- Lease a job that was submitted alone to an idle worker, and send the lease with the wake-up. The worker must execute
-- no job, which could delay it, and must be connected. Return whether it was leased.
function lease_directly(worker, fact, number)
  if call('ZCARD', P .. 'w:' .. num(number)) ~= 1 or call('SCARD', P .. 'l:' .. worker) > 0 then return false end
  local channel = P .. 'ear:' .. worker
  local listeners = redis.pcall('PUBSUB', 'NUMSUB', channel)
  if listeners.err or listeners[2] == 0 then return false end
  local token, plan, takes = unpack(cmsgpack.unpack(fact.open))
  local name = class.parts(number).name
  for _, take in ipairs(takes) do
    if take.name == name and not take.until_at then
      local out = claim.new_reply()
      claim_by(plan, {take}, {slots = tonumber(fact.slots)}, worker, token, out)
      if out.n == 0 then return false end
      clear_idle(worker)
      local head = $direct_lease{now = now15, claim = token, member = out.members[1]}
      call('PUBLISH', channel, head .. text(name) .. text(out.runs[3]) .. text(out.held[2] or '') .. out.records[1])
      return true
    end
  end
  return false
end

local function exchange(keys, args)
  begin(keys, args)
  local worker, token, wants, waits, lanes = args[2], args[3], args[4] == '1', args[5] ~= '0', args[6]
  local opens = args[5] == '2'
  local plan = args[7] == '1' and {
    known = tonumber(args[8]), free = tonumber(args[9]), below = tonumber(args[10]), leave_free = args[11] == '1',
  }
  local at, refused = finish.apply(args, 13, tonumber(args[12]))
  local notes = tonumber(args[at])
  at = at + 1
  for _ = 1, notes do
    local held = call('HGET', P .. 'lease', args[at])
    if held and $lease.token(held) == args[at + 1] then
      call('HSET', P .. 'progress', args[at], args[at + 2])
      not_quiet()
      push(tx.changed, record.id(record.of(args[at])))
    end
    at = at + 3
  end
  if tx.flow or (not quiet() and workflow.is_left()) then workflow.run() end
  blocked_queue.open_due()
  claim.start_due()
  local out, more, state = claim.new_reply(), false, 'dead'
  local outdated = plan and plan.known >= 0 and plan.known < class.all()
  if worker ~= '' then
    local takes, row = {}, call('HMGET', P .. 'worker:' .. worker, 'state', 'ends', 'slots', 'claim', 'lanes')
    state = row[1] or 'dead'
    local expired = row[1] and tonumber(row[2]) <= now
    if state == 'active' and expired then notify(worker .. '.keeper') end  -- the clock has stepped: renew
    if row[1] and plan and not outdated and not expired then
      if state == 'active' then
        for _ = 1, tonumber(args[at]) do
          push(takes, {
            name = args[at + 1], most = tonumber(args[at + 2]), below = args[at + 3] == '1', over = args[at + 4],
            until_at = tonumber(args[at + 5]),
          })
          at = at + 5
        end
        local claimer = {claim = row[4], slots = tonumber(row[3]), opens = opens}
        more = claim_by(plan, takes, claimer, worker, token, out)
        if tx.flow then workflow.run() end
        more = more or tx.left
      end
      waits = waits and state == 'active' and out.n == 0 and not more
      note_idle(worker, waits, lanes, row[5])
      if waits and opens then call('HSET', P .. 'worker:' .. worker, 'open', cmsgpack.pack({token, plan, takes})) end
    end
  end
  if out.n > 0 and watched() then
    for i = 1, out.n do push(tx.changed, record.id(out.records[i])) end
  end
  settle(worker)
  tx.running_jobs = nil
  local rules = rule_index.now()
  return {
    now, state, (more or tx.left) and 1 or 0, refused, out.records, concat(out.members), out.held, out.runs,
    rules.rungs[1] and rules.version or '', (wants or outdated) and snapshot() or false,
  }
end
