/** Paths of operations: ids joined by `/`, empty for the trace. */

export function parent(path: string): string {
  const cut = path.lastIndexOf("/");
  return cut < 0 ? "" : path.slice(0, cut);
}

export function join(path: string, id: string): string {
  return path ? `${path}/${id}` : id;
}

export function last(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** The path and all above it, from the trace on: `""`, `s5.0`, `s5.0/t3`. */
export function prefixes(path: string): string[] {
  const found = [""];
  if (!path) return found;
  let above = "";
  for (const id of path.split("/")) {
    above = join(above, id);
    found.push(above);
  }
  return found;
}

/** Whether an operation is another or lies inside it. */
export function holds(path: string, inner: string): boolean {
  return path === "" || inner === path || inner.startsWith(`${path}/`);
}

/** Step and rank of a path's first id, `s5.0`. */
export function stepOf(path: string): { step: number; rank: number } | null {
  const found = /^s(-?\d+)\.(\d+)/.exec(path);
  return found ? { step: Number(found[1]), rank: Number(found[2]) } : null;
}
