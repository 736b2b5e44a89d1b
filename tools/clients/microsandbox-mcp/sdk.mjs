// The SDK that microsandbox-mcp 0.7.2 asks for, ^0.7.2, is not in the npm registry, where 0.6.18 is the newest. This gives
// the modules of microsandbox-mcp, which are as published, that one, with the two functions about a local runtime that it lacks.
import { register } from 'node:module'

const module = (text) => 'data:text/javascript,' + encodeURIComponent(text)
const sdk = module(`export * from ${JSON.stringify(import.meta.resolve('microsandbox'))}
export const isRuntimeInstalled = () => false
export const ensureRuntime = () => Promise.reject(new Error('a local backend is needed'))`)
register(module(`export const resolve = (name, context, next) => name === 'microsandbox' ? { url: ${JSON.stringify(sdk)}, shortCircuit: true } : next(name, context)`))
