import { render } from "preact";
import { connectWatch } from "./api/watch";
import { startPage } from "./base/start";
import { markBusy } from "./state/awaited";
import { followTheme } from "./state/theme";
import { WatchStore } from "./state/watch";
import { WatchPage } from "./views/watch/page";
import "./styles/watch.css";

async function start(root: HTMLElement): Promise<void> {
  followTheme();
  markBusy(document.documentElement);
  const host = await connectWatch(document);
  const store = new WatchStore(host, await host.ask(null, null));
  document.title = `${store.answer.value.name} · stepscope`;
  root.replaceChildren();
  render(<WatchPage store={store} />, root);
}

startPage(start);
