"""A stand-in for vLLM's load generator: sends prompts of random words to a server that speaks
OpenAI's API, and prints how many of them were answered and how fast. Takes the options of the
tutorial. Fails if a response is incomplete. Only Python's standard library is needed.
"""

import argparse
import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor


def options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", choices=["vllm", "openai", "openai-chat"], default="vllm")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--dataset-name", choices=["random"], default="random")
    parser.add_argument("--random-input-len", type=int, default=128)
    parser.add_argument("--random-output-len", type=int, default=128)
    parser.add_argument("--max-concurrency", type=int, default=16)
    parser.add_argument("--num-prompts", type=int, default=512)
    return parser.parse_args()


def complete(given, number):
    """Sends one prompt. Returns the numbers of tokens in and out, or raises an exception."""
    words = random.Random(number).choices(["one", "two", "three", "four"], k=given.random_input_len)
    body = {"model": given.model, "max_tokens": given.random_output_len, "stream": True}
    is_chat = given.backend == "openai-chat"
    if is_chat:
        body["messages"] = [{"role": "user", "content": " ".join(words)}]
    else:
        body["prompt"] = " ".join(words)
    connection = http.client.HTTPConnection(given.host, given.port, timeout=300)
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read().decode()}")
    seen, usage, is_done = 0, {}, False
    for line in response:
        text = line.decode().strip()
        if not text.startswith("data: "):
            continue
        if text == "data: [DONE]":
            is_done = True
            break
        event = json.loads(text[len("data: "):])
        seen += len(event["choices"])
        usage = event.get("usage") or usage
    connection.close()
    expected = {"prompt_tokens": given.random_input_len, "completion_tokens": given.random_output_len}
    if not is_done or seen != given.random_output_len or not expected.items() <= usage.items():
        raise RuntimeError(f"prompt {number}: {seen} tokens, {usage}, complete: {is_done}")
    return given.random_input_len, seen


def main():
    given = options()
    start = time.monotonic()
    with ThreadPoolExecutor(given.max_concurrency) as pool:
        results = list(pool.map(lambda number: complete(given, number), range(given.num_prompts)))
    seconds = time.monotonic() - start
    print(f"Successful requests: {len(results)}")
    print(f"Benchmark duration (s): {seconds:.2f}")
    print(f"Total input tokens: {sum(tokens for tokens, _ in results)}")
    print(f"Total generated tokens: {sum(tokens for _, tokens in results)}")
    print(f"Request throughput (req/s): {len(results) / seconds:.2f}", flush=True)


main()
