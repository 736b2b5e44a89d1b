/** A JSON object of a server. Fields of newer servers are in it, too. */
export type Json = { readonly [name: string]: unknown };

/** Reports whether a value is a JSON object. */
export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the JSON object that a text is, or undefined. */
export function parsed(value: string): Json | undefined {
  try {
    const object: unknown = JSON.parse(value);
    return isObject(object) ? object : undefined;
  } catch {
    return undefined;
  }
}

/** Returns an object in an object; empty if it is absent. */
export function object(raw: Json, name: string): Json {
  const value = raw[name];
  return isObject(value) ? value : {};
}

/** Returns a string of an object; empty if it is absent. */
export function text(raw: Json, name: string): string {
  const value = raw[name];
  return typeof value === "string" ? value : "";
}

/** Returns a number of an object; 0 if it is absent. */
export function number(raw: Json, name: string): number {
  const value = raw[name];
  return typeof value === "number" ? value : 0;
}

/** Returns the objects of a list of an object; empty if it is absent. */
export function objects(raw: Json, name: string): Json[] {
  const value = raw[name];
  return Array.isArray(value) ? value.filter(isObject) : [];
}

/** Returns a time of an object; undefined if it is absent. */
export function time(raw: Json, name: string): Date | undefined {
  const value = new Date(text(raw, name));
  return Number.isNaN(value.getTime()) ? undefined : value;
}

/** Returns fields without those that are undefined. */
export function defined(fields: { [name: string]: unknown }): { [name: string]: unknown } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
