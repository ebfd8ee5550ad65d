#!/bin/sh
# A Headway worker in POSIX shell and curl: it registers, waits for tasks, runs them, reports, and shows that it lives.
#   HEADWAY_SERVER=http://127.0.0.1:8000 HEADWAY_TOKEN=hw_… sh worker.sh       (the token: with the scope worker, if any)
# It knows one task, `echo`, which gives back its parameters:
#   curl -H 'Content-Type: application/json' -d '{"task_type": "echo", "parameters": {"a": 1}}' $HEADWAY_SERVER/api/v1/tasks
set -u
workers=${HEADWAY_SERVER:-http://127.0.0.1:8000}/internal/workers
config=$(mktemp) # Others can see the arguments of a process, so the token goes into a file.
printf 'header = "Content-Type: application/json"\n' >"$config"
[ -z "${HEADWAY_TOKEN:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$HEADWAY_TOKEN" >>"$config"

say() { # say PATH BODY: post it and print the answer; fails if that is a refusal
  printf '%s' "$2" | curl -fsS -K "$config" --max-time 60 --data-binary @- "$workers/$1"
}

text() { # text NAME: the string of that name, in the JSON that comes in
  sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p'
}

beat() { # every so many seconds, until the server no longer knows this worker
  while sleep "$2" && say "$1/heartbeat" '{"current_load": 1, "status": "active"}' >/dev/null; do :; done
}

run() { # run TYPE PARAMETERS: do the work and print how it ended
  case $1 in
    echo) printf '"status": "completed", "result": %s' "$2" ;;
    *) printf '"status": "unknown_task"' ;;
  esac
}

leave() {
  trap - INT TERM EXIT
  kill "$heart" 2>/dev/null
  say "$id/drain" '{"leave": true}' >/dev/null # What it still has goes back unharmed.
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
  # A refusal means: this worker was taken for dead, and must register anew.
  while answer=$(say "$id/poll" '{"capabilities": ["shell"], "available_capacity": 1, "wait_seconds": 20}'); do
    head='^{"tasks":\[{"task_id":"\([^"]*\)","task_type":"\([^"]*\)","parameters":' # Answers keep this order.
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
