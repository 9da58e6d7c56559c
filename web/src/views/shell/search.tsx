import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { grouped, plural } from "../../base/format";
import { searchOf } from "../../state/search";
import type { Store } from "../../state/store";
import { search } from "../search";

export const SEARCH_BOX = "search";

/** The box, which shows what it finds in a pane; Enter goes from hit to hit. */
export function SearchBox({ store }: { store: Store }): JSX.Element {
  const { text, pane } = store.view.value;
  const input = useRef<HTMLInputElement>(null);
  const before = useRef("overview");
  if (pane !== search.id) before.current = pane;
  useLayoutEffect(() => {
    if (input.current && document.activeElement !== input.current) input.current.value = text;
  }, [text]);
  const type = (typed: string): void => {
    const wanted = typed.trim();
    if (wanted === text) return;
    searchOf(store).current.value = null;
    store.set({ text: wanted, pane: wanted ? search.id : before.current });
  };
  const press = (event: KeyboardEvent): void => {
    event.stopPropagation();
    if (event.key === "Escape") {
      input.current!.value = "";
      type("");
      document.querySelector<HTMLElement>(".stack")?.focus();
    } else if (event.key === "Enter" && text) searchOf(store).step(event.shiftKey ? -1 : 1);
  };
  return (
    <div class="search" role="search">
      <input
        ref={input}
        id={SEARCH_BOX}
        type="search"
        placeholder="Search  /"
        aria-label="Search operations and raw events"
        aria-description="Enter goes to the next hit"
        autocomplete="off"
        spellcheck={false}
        defaultValue={text}
        onInput={(event) => type(event.currentTarget.value)}
        onKeyDown={press}
      />
      {text && <Total store={store} />}
    </div>
  );
}

/** How many events there are, and which of them one is at. */
function Total({ store }: { store: Store }): JSX.Element {
  const { hits, current } = searchOf(store);
  const { value, error } = hits.value;
  const at = value?.events.event.indexOf(current.value ?? -1) ?? -1;
  const place = at >= 0 ? `${grouped(at + 1)} of ` : "";
  return (
    <span class="search-total" role="status">
      {value ? place + plural(value.total, "event") : error || "…"}
    </span>
  );
}
