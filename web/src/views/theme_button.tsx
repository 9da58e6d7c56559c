import type { JSX } from "preact";
import { theme, toggleTheme } from "../state/theme";

/** Switches between light and dark. */
export function ThemeButton({ title }: { title: string }): JSX.Element {
  return (
    <button
      type="button"
      class="icon"
      title={title}
      aria-label={`Theme: ${theme.value}`}
      onClick={toggleTheme}
    >
      {theme.value === "dark" ? "☾" : "☀"}
    </button>
  );
}
