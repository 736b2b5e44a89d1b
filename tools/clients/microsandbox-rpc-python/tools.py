"""Uses the MCP server at the address of microsandbox's JSON-RPC server, with the reference client of the protocol."""

import asyncio
import json
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": "Bearer " + os.environ["MSB_API_KEY"]}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        for mode in "legacy", "auto":
            async with Client(streamable_http_client(os.environ["MSB_SERVER_URL"] + "/mcp", http_client=http), mode=mode) as client:
                await use(client)


async def use(client):
    at = {"sandbox": "tools", "namespace": "agents"}

    async def call(name, **arguments):
        """Calls a tool, and returns its text and whether it has failed."""
        result = await client.call_tool(name, at | arguments)
        assert len(result.content) == 1
        return result.content[0].text, bool(result.is_error)

    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["sandbox_get_metrics", "sandbox_run_code", "sandbox_run_command", "sandbox_start", "sandbox_stop"]
    assert tools["sandbox_run_code"].input_schema["required"] == ["sandbox", "namespace", "code", "language"]
    prompts = [prompt.name for prompt in (await client.list_prompts()).prompts]
    assert prompts == ["create_python_sandbox", "create_node_sandbox"]
    prompt = await client.get_prompt("create_node_sandbox", {"sandbox_name": "n-1", "namespace": "agents"})
    assert '"n-1"' in prompt.messages[0].content.text and "microsandbox/node" in prompt.messages[0].content.text

    text, failed = await call("sandbox_start", config={"image": "microsandbox/python", "memory": 256, "cpus": 1})
    assert not failed and "started successfully" in text, text
    text, failed = await call("sandbox_run_code", code="x = 41\nx + 1", language="python")
    assert not failed and json.loads(text)["output"] == [{"stream": "stdout", "text": "42"}], text
    text, failed = await call("sandbox_run_command", command="sh", args=["-c", "exit 3"])
    assert not failed and json.loads(text)["exit_code"] == 3, text
    text, failed = await call("sandbox_run_command", command="nonexistentcommand")
    assert failed and "nonexistentcommand" in text, text
    text, failed = await call("sandbox_get_metrics")
    assert not failed and json.loads(text)["sandboxes"][0]["running"], text
    text, failed = await call("sandbox_run_code", code=7, language="python")
    assert failed and "must be a string" in text, text
    text, failed = await call("sandbox_run_code", namespace=None)
    assert failed and "Namespace name cannot be empty" in text, text
    text, failed = await call("sandbox_stop")
    assert not failed and "stopped successfully" in text, text
    text, failed = await call("sandbox_run_command", command="true")
    assert failed and "is not running" in text, text


asyncio.run(main())
