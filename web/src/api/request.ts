/** A request as one string, which is also its key in a cache and in the single file. */

export type Parameters = Record<string, string | number | boolean | undefined>;

/**
 * `level?path=s5.0%2Ft3`: the name, then the parameters that are not empty in alphabetical order.
 *
 * The same form is written by `stepscope report --html`, so it must not change on one side alone.
 */
export function requestKey(name: string, parameters: Parameters = {}): string {
  const parts = Object.keys(parameters)
    .sort()
    .map((key) => [key, plain(parameters[key])] as const)
    .filter(([, value]) => value !== "")
    .map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`);
  return parts.length ? `${name}?${parts.join("&")}` : name;
}

function plain(value: string | number | boolean | undefined): string {
  if (value === undefined || value === false) return "";
  return value === true ? "1" : String(value);
}

/** The parts of a key again. */
export function parseKey(key: string): { name: string; parameters: Record<string, string> } {
  const cut = key.indexOf("?");
  if (cut < 0) return { name: key, parameters: {} };
  const parameters = Object.fromEntries(new URLSearchParams(key.slice(cut + 1)));
  return { name: key.slice(0, cut), parameters };
}
