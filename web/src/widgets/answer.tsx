import type { ReadonlySignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";

/** The form of `state/latest`'s answers, as far as showing them goes. */
interface Answer<T> {
  value: T | null;
  error: string;
  loading: boolean;
}

/** What an answer says once it is there; until then that it is on its way, or why it is not. */
export function WithAnswer<T>(props: {
  answer: ReadonlySignal<Answer<T>>;
  /** What to say meanwhile of one that takes long. */
  waiting?: string;
  children: (value: T) => ComponentChildren;
}): JSX.Element {
  const { value, error, loading } = props.answer.value;
  if (value !== null)
    return (
      <>
        {error && <ErrorLine text={error} />}
        {props.children(value)}
      </>
    );
  if (error) return <ErrorLine text={error} />;
  const said = loading ? (props.waiting ?? "Loading…") : "";
  return (
    <p class={said && "nothing"} role="status">
      {said}
    </p>
  );
}

export function ErrorLine({ text }: { text: string }): JSX.Element {
  return (
    <p class="error-line" role="alert">
      {text}
    </p>
  );
}
