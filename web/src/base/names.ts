/** Names of operators and functions, as short as a picture needs them. */

const NAMESPACES = /\b(?:(?:[a-z_]\w*|\(anonymous namespace\))::)+(?=[A-Za-z_])/;
/** What C++ writes before the name of a kernel. */
const RETURNED = /^void /;
/** Fewer letters than these say nothing. */
const FEWEST_LETTERS = 3;

/** A name without what stands before it: `conv2d` of `aten::conv2d`, `sum` of `void at::sum`. */
export function withoutNamespace(name: string): string {
  return name.replace(RETURNED, "").replace(NAMESPACES, "");
}

/**
 * A name, without its namespace where that does not fit, else as much of its start as does;
 * empty where that says nothing.
 */
export function fittingName(
  name: string,
  width: number,
  measure: (text: string) => number,
): string {
  if (measure(name) <= width) return name;
  const text = withoutNamespace(name);
  const whole = measure(text);
  if (whole <= width) return text;
  let letters = Math.floor((text.length * width) / whole) - 1; // if all were as wide as the mean one
  while (letters >= FEWEST_LETTERS) {
    const start = `${text.slice(0, letters--)}…`;
    if (measure(start) <= width) return start;
  }
  return "";
}
