/** As many as are listed: more than fit would not be read. */
const MOST = 40;

/** Those whose name has every word; names that begin with what is typed come first. */
export function matching<T extends { kind: string; name: string }>(commands: readonly T[], typed: string): T[] {
  const text = typed.toLowerCase().trim();
  const words = text.split(/\s+/).filter(Boolean);
  const found = commands.filter((one) => {
    const said = `${one.kind} ${one.name}`.toLowerCase();
    return words.every((word) => said.includes(word));
  });
  const later = (one: T): number => Number(!one.name.toLowerCase().startsWith(text));
  return found.sort((a, b) => later(a) - later(b)).slice(0, MOST);
} // prettier-ignore
