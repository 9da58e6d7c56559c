/** A map that forgets what was used the longest ago, beyond `size` of them. */
export class Lru<V> {
  private readonly kept = new Map<string, V>();

  constructor(public size: number) {}

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
    for (const oldest of this.kept.keys()) {
      if (this.kept.size <= this.size) break;
      this.kept.delete(oldest);
    }
  }

  delete(key: string): void {
    this.kept.delete(key);
  }
}
