-- snapshot: what waits in each class and what runs, for a plan.
--
-- It has the moment the next job is due ('' for none), of each class its text, how many wait, the age of the oldest or
-- '', the order key of the first or '', whether tenants share it, and why it is blocked or '', and the running jobs
-- (slots, running, counts by rung, elastic jobs and sessions as id, rung and start) or false.
local function snapshot()
  blocked_queue.open_due()
  local rules, views, soon = rule_index.now(), {}, nil
  local ladder, sessions = rules.rungs[1] ~= nil, false
  for number = 1, class.all() do
    local key, name = class.parts(number), num(number)
    local waiting, oldest, head, fair, blocked = 0, '', '', '0', ''
    sessions = sessions or key.rung == 'interactive'
    if rule_index.lane_paused(key.lane) then blocked = 'paused'
    elseif key.persist and ladder and not limits.fit(key.rung) then blocked = 'ladder' end
    if key.persist then
      local front, open = call('ZRANGE', P .. 'w:' .. name, 0, 0, 'WITHSCORES'), {}
      if front[1] then waiting = call('ZCARD', P .. 'w:' .. name) end
      if blocked_queue.any(number) then
        open = call('ZRANGE', P .. 'open:' .. name, 0, 0, 'WITHSCORES')
        waiting = waiting + call('ZCARD', P .. 'open:' .. name)
      end
      if ordering.clock(number) then
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
    waiting = num(math.min(waiting, WAITING_COUNT_MAX))
    for _, value in ipairs({key.name, waiting, oldest, head, fair, blocked}) do push(views, value) end
  end
  if not quiet() then
    local due = call('ZRANGE', P .. 'due', 0, 0, 'WITHSCORES')
    local timed = call('ZRANGE', P .. 'timed', 0, 0, 'WITHSCORES')
    if due[2] then soon = tonumber(due[2]) end
    if timed[2] then soon = math.min(soon or math.huge, tonumber(timed[2])) end
  end
  local running_jobs = false
  if ladder or sessions then
    local seen, counts = limits.running_jobs(), {}
    for _, rung in ipairs(rules.rungs) do push(counts, seen.counts[rung.name] or 0) end
    local function listed(entries)
      local found = {}
      for _, entry in ipairs(entries) do
        push(found, record.id(record.of(entry.member)))
        push(found, entry.rung, num(entry.started))
      end
      return found
    end
    running_jobs = {seen.slots, seen.running, counts, listed(seen.elastic), listed(seen.sessions)}
  end
  return {soon and num(soon) or '', views, running_jobs}
end

local function snapshot_now(keys, args)
  begin(keys, args)
  return {now, snapshot()}
end
