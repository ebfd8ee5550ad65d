-- exchange: end leases, note progress, make due jobs eligible, claim by the plan, picture what waits: one step.
-- args     worker ('' for none), claim id, whether a snapshot is wanted, whether to wait (2: and leave the claim open),
--          for which lanes (* for any), whether there is a plan, how many classes it knew (-1: any number), its totals
--          free and free_below, leave_free, number of reports, reports, number of progress notes, member, token and
--          blob of each, number of takes, class, most, below_reserve, over and until of each
-- returns  now, state of the worker, more, refused (index, answer ...), of the leases: their records, their members in
--          one text, those that are not fresh (index, lease ...) and their classes (text, how many in a row, ...);
--          snapshot or false
-- holds    never more leases than the plan's totals, the worker's slots or any cap in force allow
local snapshot

local function note_waiting(worker, waits, lanes, before_)  -- one that looks again while it waits keeps its turn
  if before_ and (not waits or before_ ~= lanes) then
    no_wait(worker)
    before_ = false
  end
  if waits and not before_ then
    call('HSET', P .. 'worker:' .. worker, 'lanes', lanes)
    call('ZADD', P .. 'wait', num(call('HINCRBY', P .. 'meta', 'turn', 1)), worker)
  end
end

local function leases_again(worker, token, out, runs)  -- the same claim again: the same leases, where still held
  local members = call('SMEMBERS', P .. 'l:' .. worker)
  table.sort(members)
  for _, member in ipairs(members) do
    local held = call('HGET', P .. 'lease', member)
    if held and $lease.token(held) == token then
      claim.give(out, member, record.of(member) or '', held)
      push(runs, class.parts($lease.class(held)).name, '1')
    end
  end
end

local function claim_by(plan, takes, row, worker, token, out, runs)
  if row.claim == token then
    leases_again(worker, token, out, runs)
    if out.n > 0 or not row.opens then return false end  -- what was handed over may be gone before it was heard of
  end
  local free = math.min(plan.free, row.slots - call('SCARD', P .. 'l:' .. worker))
  local below, more = math.min(plan.below, caps.pool_room()), false
  local claimed = 0
  for _, take in ipairs(takes) do
    local want = math.min(take.most, free)
    if take.below then want = math.min(want, below) end
    local number = want > 0 and class.known(take.name)
    if number and not book.shuts(class.parts(number, take.name).lane) then
      take.number = number
      local got, unseen = claim.take(take, want, worker, token, out)
      more = more or unseen
      claimed = claimed + got
      if got > 0 then push(runs, take.name, num(got)) end
      if take.over ~= '' then count('promoted.' .. class.parts(number).lane .. '.' .. take.over, got) end
      free = free - got
      if take.below or plan.leave_free then below = below - got end
    end
  end
  count('claimed', claimed)
  if claimed > 0 then call('HSET', P .. 'worker:' .. worker, 'claim', token) end
  return more
end

-- Only to a worker that executes nothing, so that no job of its own keeps it from hearing of it, and that is connected.
function hand_over(worker, fact, number)
  if call('ZCARD', P .. 'w:' .. num(number)) ~= 1 or call('SCARD', P .. 'l:' .. worker) > 0 then return false end
  local ear = P .. 'ear:' .. worker
  local heard = redis.pcall('PUBSUB', 'NUMSUB', ear)
  if heard.err or heard[2] == 0 then return false end
  local token, plan, takes = unpack(cmsgpack.unpack(fact.open))
  local name = class.parts(number).name
  for _, take in ipairs(takes) do
    if take.name == name and not take.until_at then
      local out, runs = {n = 0, members = {}, records = {}, held = {}}, {}
      claim_by(plan, {take}, {slots = tonumber(fact.slots)}, worker, token, out, runs)
      if out.n == 0 then return false end
      no_wait(worker)
      local head = $direct_lease{now = now15, claim = token, member = out.members[1]}
      call('PUBLISH', ear, head .. text(name) .. text(out.held[2] or '') .. out.records[1])
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
  local at, refused = ending.finish(args, 13, tonumber(args[12]))
  local notes = tonumber(args[at])
  at = at + 1
  for _ = 1, notes do
    local held = call('HGET', P .. 'lease', args[at])
    if held and $lease.token(held) == args[at + 1] then
      call('HSET', P .. 'progress', args[at], args[at + 2])
      stir()
      push(tx.changed, record.id(record.of(args[at])))
    end
    at = at + 3
  end
  parks.pump()
  claim.pump()
  local out, runs, more, state = {n = 0, members = {}, records = {}, held = {}}, {}, false, 'dead'
  local outdated = plan and plan.known >= 0 and plan.known < class.all()
  if worker ~= '' then
    local takes, row = {}, call('HMGET', P .. 'worker:' .. worker, 'state', 'ends', 'slots', 'claim', 'lanes')
    state = row[1] or 'dead'
    if state == 'active' and tonumber(row[2]) <= now then ring(worker .. '.keeper') end  -- the clock has stepped: renew
    if row[1] and plan and not outdated and tonumber(row[2]) > now then
      if state == 'active' then
        for _ = 1, tonumber(args[at]) do
          push(takes, {
            name = args[at + 1], most = tonumber(args[at + 2]), below = args[at + 3] == '1', over = args[at + 4],
            until_at = tonumber(args[at + 5]),
          })
          at = at + 5
        end
        local claimer = {claim = row[4], slots = tonumber(row[3]), opens = opens}
        more = claim_by(plan, takes, claimer, worker, token, out, runs)
      end
      waits = waits and state == 'active' and out.n == 0 and not more
      note_waiting(worker, waits, lanes, row[5])
      if waits and opens then call('HSET', P .. 'worker:' .. worker, 'open', cmsgpack.pack({token, plan, takes})) end
    end
  end
  if out.n > 0 and watched() then
    for i = 1, out.n do push(tx.changed, record.id(out.records[i])) end
  end
  settle(worker)
  tx.floor = nil
  return {
    now, state, more and 1 or 0, refused, out.records, concat(out.members), out.held, runs,
    (wants or outdated) and snapshot() or false,
  }
end
