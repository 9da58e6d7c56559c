import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The width of an element, px, as it changes. */
export function useWidth<Kind extends HTMLElement = HTMLElement>(): [
  { current: Kind | null },
  number,
] {
  const box = useRef<Kind>(null);
  const [width, setWidth] = useState(320);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(() => setWidth(box.current?.clientWidth ?? 320));
    if (box.current) watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}
