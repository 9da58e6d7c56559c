/** What went wrong, as one line for the user. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
