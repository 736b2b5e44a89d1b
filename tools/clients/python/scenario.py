"""The scenario of every generated client, see internal/server: TestGeneratedClients."""

import json
import os
from collections.abc import Iterator
from io import BytesIO
from typing import TypeVar

from sandpit_client import AuthenticatedClient
from sandpit_client.api.files import read_file, write_file
from sandpit_client.api.processes import exec_, start_process, wait_process
from sandpit_client.api.sandboxes import create_sandbox, get_sandbox, list_sandboxes, remove_sandbox, update_sandbox
from sandpit_client.models import (
    Change,
    ChangeLabels,
    Command,
    EnvMap,
    Error,
    ErrorCode,
    Event,
    EventKind,
    EventStreamEvent,
    Exec,
    ExecForm,
    Sandbox,
    SandboxState,
    Spec,
    SpecLabels,
)
from sandpit_client.types import UNSET, File, Unset

client = AuthenticatedClient(base_url=os.environ["SANDPIT_URL"], token=os.environ["SANDPIT_KEY"])

T = TypeVar("T")


def take(answer: T | Error | None) -> T:
    """Returns what an operation answers, and raises if it failed."""
    assert answer is not None and not isinstance(answer, Error), answer
    return answer


def given(value: T | Unset) -> T:
    """Returns the value of a field that is not required."""
    assert not isinstance(value, Unset)
    return value


def events(sandbox: str, after: int) -> Iterator[Event]:
    """Yields the events of a sandbox."""
    http = client.get_httpx_client()
    with http.stream("GET", "/v1/events", params={"sandbox": sandbox, "after": after}) as answer:
        answer.raise_for_status()
        name = ""
        for line in answer.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name in [kind.value for kind in EventKind]:
                yield EventStreamEvent.from_dict({"event": name, "data": json.loads(value)}).data


made: list[Sandbox] = []
for new in ["py-one", "py-two"]:
    labels = SpecLabels.from_dict({"client": "python"})
    spec = Spec(name=new, labels=labels, env=EnvMap.from_dict({"GREETING": "hello"}))
    made.append(take(create_sandbox.sync(client=client, body=spec)))
sb = made[0].id
assert made[0].state is SandboxState.RUNNING

# A process that is waited for, and a command with its output.
started = take(start_process.sync(sb, client=client, body=Command(argv=["sh", "-c", "exit 4"])))
ended = take(wait_process.sync(sb, started.id, client=client))
assert given(ended.result).exit_code == 4
done = take(exec_.sync(sb, client=client, body=Exec(script='echo "$GREETING"; echo oops >&2; exit 3')))
assert (done.stdout, done.stderr, done.result.exit_code) == ("hello\n", "oops\n", 3)

# Standard input of any bytes.
form = ExecForm(command=Exec(argv=["wc", "-c"]), stdin=File(payload=BytesIO(bytes(range(256)))))
assert take(exec_.sync(sb, client=client, body=form)).stdout.strip() == "256"

# Errors have a code of the enum.
failed = exec_.sync(sb, client=client, body=Exec(argv=["/no/such"]))
assert isinstance(failed, Error)
assert failed.code is ErrorCode.START_FAILED and failed.exit_code == 127

# A file of any bytes.
content = bytes(range(256)) * 3
written = take(write_file.sync(sb, client=client, path="/tmp/bytes", body=File(payload=BytesIO(content))))
assert written.bytes_ == len(content)
assert take(read_file.sync(sb, client=client, path="/tmp/bytes")).payload.read() == content

# Pages of a list with a filter.
page = take(list_sandboxes.sync(client=client, label=["client=python"], state=[SandboxState.RUNNING], limit=1))
last = take(
    list_sandboxes.sync(
        client=client, label=["client=python"], state=[SandboxState.RUNNING], limit=1, after=given(page.next_)
    )
)
assert last.next_ is UNSET
assert [s.name for s in page.sandboxes + last.sandboxes] == ["py-one", "py-two"]

# Labels change, which is an event.
change = Change(labels=ChangeLabels.from_dict({"client": None, "color": "red"}))
changed = take(update_sandbox.sync(sb, client=client, body=change))
assert given(changed.labels).to_dict() == {"color": "red"}
for event in events(sb, page.seq):
    if event.kind is EventKind.SANDBOX_UPDATED:
        assert given(event.labels).to_dict() == {"color": "red"}
        break

for sandbox in made:
    assert remove_sandbox.sync_detailed(sandbox.id, client=client).status_code == 204
gone = get_sandbox.sync(sb, client=client)
assert isinstance(gone, Error) and gone.code is ErrorCode.NOT_FOUND
client.get_httpx_client().close()
