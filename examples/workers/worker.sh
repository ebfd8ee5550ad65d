#!/bin/sh
# A Headway worker in POSIX shell and curl: it registers, waits for tasks, runs them, reports results and sends heartbeats.
#   HEADWAY_SERVER=http://127.0.0.1:8000 HEADWAY_TOKEN=hw_… sh worker.sh      (token: scope worker, if the server has tokens)
# It has one task, `echo`, which returns its parameters:
#   curl -H 'Content-Type: application/json' -d '{"task_type": "echo", "parameters": {"a": 1}}' $HEADWAY_SERVER/api/v1/tasks
set -u
workers=${HEADWAY_SERVER:-http://127.0.0.1:8000}/internal/workers
config=$(mktemp) # Other users can see the arguments of a process, so the token is in a file.
printf 'header = "Content-Type: application/json"\n' >"$config"
[ -z "${HEADWAY_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$HEADWAY_TOKEN" >>"$config"

say() { # say PATH BODY: post the body and print the reply; fail if the server refuses
  printf '%s' "$2" | curl -fsS -K "$config" --max-time 60 --data-binary @- "$workers/$1"
}

text() { # text NAME: print the string of that name in the JSON on standard input
  sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'
}

beat() { # beat ID SECONDS: send heartbeats until the server no longer knows this worker
  while sleep "$2" && say "$1/heartbeat" '{"current_load": 1, "status": "active"}' >/dev/null; do :; done
}

run() { # run TYPE PARAMETERS: do the work and print the outcome
  case $1 in
    echo) printf '"status": "completed", "result": %s' "$2" ;;
    *) printf '"status": "unknown_task"' ;;
  esac
}

leave() {
  trap - INT TERM EXIT
  kill "$heart" 2>/dev/null
  say "$id/drain" '{"leave": true}' >/dev/null # Its unfinished tasks return to the queue.
  rm -f "$config"
  exit 0
}

heart='' id=none
trap leave INT TERM EXIT
while :; do
  answer=$(say register '{"capabilities": ["shell"], "capacity": 1, "name": "worker.sh"}') || { sleep 2; continue; }
  id=$(printf '%s' "$answer" | text worker_id)
  seconds=$(printf '%s' "$answer" | sed 's/.*"heartbeat_seconds":\([0-9]*\).*/\1/')
  beat "$id" "$((seconds > 0 ? seconds : 1))" &
  heart=$!
  # A refusal means that the server counts this worker as dead. It must register again.
  while answer=$(say "$id/poll" '{"capabilities": ["shell"], "available_capacity": 1, "wait_seconds": 20}'); do
    head='^{"tasks":\[{"task_id":"\([^"]*\)","task_type":"\([^"]*\)","parameters":' # Replies keep this order.
    task=$(printf '%s' "$answer" | sed -n "s/$head.*/\1/p")
    [ -n "$task" ] || continue
    kind=$(printf '%s' "$answer" | sed "s/$head.*/\2/")
    parameters=$(printf '%s' "$answer" | sed "s/$head\(.*\),\"timeout_seconds\":.*/\3/")
    fence=$(printf '%s' "$answer" | text fence)
    say "$id/result" "{\"task_id\": \"$task\", \"fence\": \"$fence\", $(run "$kind" "$parameters")}" >/dev/null
  done
  kill "$heart" 2>/dev/null
  sleep 1
done
