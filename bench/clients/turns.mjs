// Does what the lines of standard input name, one at a time, and answers each with a line of JSON: the times that it
// took, in milliseconds, or an error.
import { createInterface } from 'node:readline'

// once runs a function and returns how long it took.
export async function once(f) {
  const start = performance.now()
  const value = await f()
  return [performance.now() - start, value]
}

// operations, of the names in clients_linux.go, return their times. create(n) makes n sandboxes at once, each until its
// first command has answered. What it takes to remove them does not count.
export async function serve(operations) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, argument] = line.split(' ')
    let answer
    try {
      answer = { ms: (await operations[name](Number(argument))) ?? [] }
    } catch (error) {
      answer = { error: String(error) }
    }
    console.log(JSON.stringify(answer))
  }
  process.exit(0)
}

// creator makes the operation create.
export const creator = (make, remove) => async (n) => {
  const made = await Promise.allSettled(Array.from({ length: n }, () => once(make)))
  const good = made.filter((m) => m.status === 'fulfilled').map((m) => m.value)
  for (const [, sandbox] of good) await remove(sandbox) // one by one, for the rate of the key
  const bad = made.find((m) => m.status === 'rejected')
  if (bad) throw bad.reason
  return good.map(([took]) => took)
}

// content is what is sent and received.
export const content = (size) => Buffer.alloc(size, 'sandpit\n')

export const check = (good, what) => {
  if (!good) throw new Error(what)
}
