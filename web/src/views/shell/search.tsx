import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { duration, plural } from "../../base/format";
import type { Store } from "../../state/store";

export const SEARCH_BOX = "search";

export function SearchBox({ store }: { store: Store }): JSX.Element {
  const open = useSignal(false);
  const { text } = store.view.value;
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => {
    if (input.current && document.activeElement !== input.current) input.current.value = text;
  }, [text]);
  const type = (value: string): void => {
    store.set({ text: value.trim() });
    open.value = true;
  };
  const leave = (): void => {
    open.value = false;
    document.querySelector<HTMLElement>(".stack")?.focus();
  };
  const press = (event: KeyboardEvent): void => {
    event.stopPropagation();
    if (event.key === "Escape") {
      store.set({ text: "" });
      input.current!.value = "";
      leave();
    } else if (event.key === "Enter" && event.target === input.current) leave();
  };
  const answer = store.found.value.value;
  return (
    <div
      class="search"
      role="search"
      onKeyDown={press}
      onFocusOut={(event) => {
        if (!(event.currentTarget as HTMLElement).contains(event.relatedTarget as Node))
          open.value = false;
      }}
    >
      <input
        ref={input}
        id={SEARCH_BOX}
        type="search"
        placeholder="Search  /"
        aria-label="Search operations and raw events"
        autocomplete="off"
        spellcheck={false}
        defaultValue={text}
        onInput={(event) => type(event.currentTarget.value)}
        onFocus={() => (open.value = true)}
      />
      {text && (
        <span class="search-total" role="status">
          {answer ? plural(answer.total, "event") : store.found.value.error || "…"}
        </span>
      )}
      {open.value && text && answer && <Found store={store} onLeave={() => (open.value = false)} />}
    </div>
  );
}

/** The longest of the events found; one is gone to by a click. */
function Found({ store, onLeave }: { store: Store; onLeave: () => void }): JSX.Element | null {
  const answer = store.found.value.value;
  if (!answer?.first.length) return null;
  const go = (event: number): void => {
    void store.goTo(event);
    onLeave();
  };
  return (
    <ul class="found" aria-label="Longest events found">
      {answer.first.map((one) => (
        <li key={one.event}>
          <button type="button" disabled={one.step === null} onClick={() => go(one.event)}>
            <span class="name-text" title={one.name}>
              {one.name}
            </span>
            <span class="dim">step {one.step}</span>
            <span class="number">{duration(one.duration_ns)}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}
