/** A map that forgets what was used the longest ago. */
export class Lru<V> {
  private readonly kept = new Map<string, V>();

  constructor(private readonly size: number) {}

  get(key: string): V | undefined {
    const value = this.kept.get(key);
    if (value !== undefined) {
      this.kept.delete(key);
      this.kept.set(key, value);
    }
    return value;
  }

  set(key: string, value: V): void {
    this.kept.delete(key);
    this.kept.set(key, value);
    if (this.kept.size > this.size) {
      for (const oldest of this.kept.keys()) {
        this.kept.delete(oldest);
        break;
      }
    }
  }

  delete(key: string): void {
    this.kept.delete(key);
  }
}
