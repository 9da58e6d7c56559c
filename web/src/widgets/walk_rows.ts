/** Up and down move between the rows that can be chosen, Enter and the space bar choose one. */
export function walkRows(event: KeyboardEvent): void {
  const row = event.target as HTMLElement;
  if (!row.matches("tr[tabindex]")) return;
  if (event.key === "Enter" || event.key === " ") row.click();
  else if (event.key === "ArrowDown") focusNext(row, "nextElementSibling");
  else if (event.key === "ArrowUp") focusNext(row, "previousElementSibling");
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function focusNext(row: Element, way: "nextElementSibling" | "previousElementSibling"): void {
  let next = row[way];
  while (next && !next.matches("[tabindex]")) next = next[way];
  (next as HTMLElement | null)?.focus();
}
