# Größe des Stapels; 批次大小; размер пакета
größe = "ß" * 10; 批次 = "批次大小 🎲🎲"; batch_size = 30  # → 48 wäre größer
загрузчик = DataLoader(данные, batch_size=batch_size)
