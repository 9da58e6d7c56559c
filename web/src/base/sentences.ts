/** The first sentence of a text: its title, before the details. */
export function titleOf(text: string): string {
  return /^.*?[.!?](?= [A-Z`]|$)/s.exec(text)?.[0] ?? text;
}
