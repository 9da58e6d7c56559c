import type { Prediction, ListedChange, Parameter } from "../api/types";

/** `bandwidth:factor=2` in its parts, as the command line takes it. */
export interface Request {
  name: string;
  values: Record<string, string>;
}

export function parseRequest(text: string): Request {
  const cut = text.indexOf(":");
  if (cut < 0) return { name: text, values: {} };
  const parts = text
    .slice(cut + 1)
    .split(",")
    .filter(Boolean);
  return {
    name: text.slice(0, cut),
    values: Object.fromEntries(
      parts.map((part) => {
        const equals = part.indexOf("=");
        return equals < 0 ? [part, ""] : [part.slice(0, equals), part.slice(equals + 1)];
      }),
    ),
  };
}

function requestText({ name, values }: Request): string {
  const said = Object.entries(values).map(([key, value]) => `${key}=${value}`);
  return said.length ? `${name}:${said.join(",")}` : name;
}

/** What a field shows: what the request says, else the default, else nothing. */
export function valueOf(text: string, parameter: Parameter): string {
  return parseRequest(text).values[parameter.name] ?? usual(parameter);
}

/** The request with another value; one that is empty or as by default is left out. */
export function withValue(text: string, parameter: Parameter, value: string): string {
  const { name, values } = parseRequest(text);
  const { [parameter.name]: _, ...others } = values;
  const said = value.trim();
  const kept = said === "" || said === usual(parameter);
  return requestText({ name, values: kept ? others : { ...others, [parameter.name]: said } });
}

/** Parameters that a request has to give, and does not. */
export function missing(text: string, change: ListedChange | undefined): string[] {
  const { values } = parseRequest(text);
  return (change?.parameters ?? [])
    .filter((one) => one.default === null && !values[one.name])
    .map((one) => one.name);
}

/** The list with one of its entries earlier (-1) or later (1), as far as there is room. */
export function moved<T>(list: readonly T[], index: number, by: -1 | 1): T[] {
  const found = [...list];
  const other = index + by;
  if (other < 0 || other >= list.length) return found;
  [found[index], found[other]] = [found[other]!, found[index]!];
  return found;
}

function usual(parameter: Parameter): string {
  return parameter.default === null ? "" : String(parameter.default);
}

/** A line of a comparison. */
export interface Compared {
  name: string;
  before: number;
  after: number;
}

/** Two tellings of the same parts side by side, the largest first; what is nothing in both goes. */
export function compared(
  before: Record<string, number>,
  after: Record<string, number>,
  least = 0.0005,
): Compared[] {
  return [...new Set([...Object.keys(before), ...Object.keys(after)])]
    .map((name) => ({ name, before: before[name] ?? 0, after: after[name] ?? 0 }))
    .filter((one) => Math.max(one.before, one.after) >= least)
    .sort((a, b) => Math.max(b.before, b.after) - Math.max(a.before, a.after));
}

/** How the answer's speed is to be put: `1.50× as fast`, `as fast as now`. */
export function speed(answer: Prediction): string {
  const { speedup } = answer;
  if (speedup === null) return "no work is left";
  const text = speedup.toFixed(2);
  return text === "1.00" ? "as fast as now" : `${text}× as fast`;
}

/** What a prediction has without and with the changes. */
export function bothSides<T>(sides: Record<string, T>): { before: T; after: T } {
  return sides as { before: T; after: T };
}
